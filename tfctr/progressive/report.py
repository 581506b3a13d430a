"""The windows of a progressive run as text, as CSV, and as a plot."""

import csv
import io
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from keras_layers.storage.byte_size import format_bytes


def report(result: Mapping[str, Any]) -> str:
    """Returns a few lines that say how a progressive run went."""
    windows = result["windows"]
    lines = {
        "AUC": f"{_number(result['auc'])}   (the mean of {len(windows)} windows)",
        **{
            f"AUC of {name.removesuffix('_auc').replace('_', ' ')}": _number(value)
            for name, value in result.items()
            if name.endswith("_auc")
        },
        "log loss": _number(result["log_loss"]),
        "throughput": f"{result['examples_per_second']:,.0f} examples/s",
        "rows": f"{result['rows']:,}   (at most "
        f"{max(window['table_rows'] for window in windows):,})",
        "memory": f"{format_bytes(result['peak_memory_bytes'])} at the peak, of which "
        f"{format_bytes(result['table_bytes'])} tables",
    }
    width = max(map(len, lines)) + 2
    return "\n".join(f"  {name:<{width}}{text}" for name, text in lines.items())


def to_csv(windows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the windows as the text of a CSV file; what is unknown is `nan`."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(windows[0]), lineterminator="\n")
    writer.writeheader()
    for window in windows:
        writer.writerow({name: _cell(value) for name, value in window.items()})
    return file.getvalue()


def plot(windows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Writes an SVG: AUCs, rows and memory over the windows.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.dates
    import matplotlib.pyplot as plt
    import numpy as np

    times = np.array([window["start"][:19] for window in windows], "datetime64[s]")
    figure, panels = plt.subplots(3, 1, figsize=(9, 8), sharex=True)

    def draw(panel: Any, name: str, label: str, factor: float = 1.0) -> None:
        values = [window[name] for window in windows]
        numbers = np.array([math.nan if v is None else v * factor for v in values])
        panel.plot(times, numbers, label=label, linewidth=1.2)

    for name in windows[0]:
        if name == "auc" or name.endswith("_auc"):
            label = name.removesuffix("_auc").replace("_", " ")
            draw(panels[0], name, "model" if name == "auc" else label)
    panels[0].set(ylabel="AUC of the window")
    draw(panels[1], "table_rows", "rows")
    draw(panels[1], "new_rows", "new")
    draw(panels[1], "expired_rows", "expired")
    panels[1].set(ylabel="rows")
    draw(panels[2], "memory_bytes", "process", 1e-6)
    draw(panels[2], "table_bytes", "tables", 1e-6)
    panels[2].set(ylabel="MB")
    panels[2].set_ylim(bottom=0)
    for panel in panels:
        panel.legend(loc="best", fontsize="small")
        panel.grid(alpha=0.3)
    locator = matplotlib.dates.AutoDateLocator()
    panels[2].xaxis.set_major_locator(locator)
    panels[2].xaxis.set_major_formatter(matplotlib.dates.ConciseDateFormatter(locator))
    figure.tight_layout()
    # Without a date, and with names that follow from the content, so that equal
    # results are equal files.
    with matplotlib.rc_context({"svg.hashsalt": "tfctr"}):
        figure.savefig(pathlib.Path(path), metadata={"Date": None})
    plt.close(figure)


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4f}"


def _cell(value: Any) -> Any:
    if value is None:
        return "nan"
    return f"{value:.6g}" if isinstance(value, float) else value
