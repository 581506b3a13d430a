"""The results of a study as a table and as a plot."""

import importlib
import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from tfctr.study.grid import RULES, Cell
from tfctr.study.results import cell_of


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Returns the AUCs as a Markdown table: a line per network and rule."""
    auc = {cell_of(row): row["auc"] for row in rows}
    shares = {cell_of(row): row["clipped_share"] for row in rows}
    sizes = sorted({cell.batch_size for cell in auc})
    lines = [
        "| network | rule | " + " | ".join(map(str, sizes)) + " |",
        "|---|---|" + "---|" * len(sizes),
    ]
    for network, rule in dict.fromkeys((cell.network, cell.rule) for cell in auc):
        cells = [Cell(network, size, rule) for size in sizes]
        texts = [_text(auc.get(cell), ".4f") for cell in cells]
        lines.append(f"| {network} | {rule} | {' | '.join(texts)} |")
        if rule == "cowclip":
            texts = [_text(shares.get(cell), ".2%") for cell in cells]
            lines.append(f"| | rows clipped | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _text(value: float | None, form: str) -> str:
    """Returns a value of a cell; of one that was not trained, nothing."""
    if value is None:
        return ""
    return "diverged" if math.isnan(value) else format(value, form)


def check_matplotlib() -> None:
    """Raises `ValueError` unless `plot` can draw.

    It is needed at the very end: its absence must not be found there.
    """
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise ValueError(
            "A study draws its plot with matplotlib. Received: an environment without "
            f"it ({error}). Install it: pip install matplotlib."
        ) from error


def plot(rows: Sequence[dict[str, Any]], path: pathlib.Path) -> None:
    """Writes the AUCs over the batch sizes, a panel for each network."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure, panels = plt.subplots(
        1, len(networks), figsize=(3.2 * len(networks) + 1, 3.2), squeeze=False
    )
    for panel, network in zip(panels[0], networks, strict=True):
        for rule in RULES:
            points = sorted(
                (row["batch_size"], row["auc"])
                for row in rows
                if row["network"] == network and row["rule"] == rule
            )
            panel.plot(*zip(*points, strict=True), marker="o", label=rule)
        panel.set_xscale("log", base=2)
        panel.set(title=network, xlabel="batch size")
    panels[0][0].set_ylabel("test AUC")
    panels[0][0].legend()
    figure.tight_layout()
    # Without a date, so that equal results are equal files.
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
