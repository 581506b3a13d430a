"""The plots of a run, each as SVG that stands in a page."""

import importlib
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

# For what has the colour of the text around it, in dark pages as in light ones.
_INK = "#010203"
_COLORS = (
    "#3b82f6",
    "#f59e0b",
    "#10b981",
    "#ef4444",
    "#8b5cf6",
    "#06b6d4",
    "#ec4899",
    "#84cc16",
)
_OTHERS = "#94a3b8"
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": _INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": _INK,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.12,
    "grid.color": _INK,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "ytick.major.size": 0,
}

# So few points are marked: one is no line.
_FEW = 12

Line = Sequence[float | None]
Values = Mapping[str, Sequence[float]]


def check_matplotlib() -> None:
    """Raises `ValueError` unless `draw` can draw."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise ValueError(
            "The page of a training is drawn by matplotlib. Received: an environment "
            f"without it ({error}). Install it: pip install matplotlib, or go "
            "without the page: TrainingReport(..., page=False)."
        ) from error


def draw(
    name: str,
    steps: Sequence[int],
    lines: Mapping[str, Line],
    unit: str = "",
    stacked: bool = False,
    from_zero: bool = True,
) -> str:
    """Returns lines over the steps of a run, as an `<svg>` element.

    Args:
        name: String. Of the plot, unlike that of others on the page.
        steps: Integers.
        lines: Dict of name and values, one for each step; `None` leaves a gap. Beyond
            eight, the others are grey and without a name: give the chief ones first.
        unit: String. Of the values; `"%"` for shares, from 0 to 1.
        stacked: Boolean. Whether the lines add up, as areas.
        from_zero: Boolean. Whether the values are amounts, whose axis begins at zero.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # Equal plots are equal files, and no two plots of a page share a name inside.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(6.4, 2.7))
        legend_lines = -(-min(len(lines), len(_COLORS)) // 4) if len(lines) > 1 else 0
        axes = figure.add_axes((0.115, 0.15, 0.85, 0.81 - 0.065 * legend_lines))
        values = {label: _floats(line) for label, line in lines.items()}
        (_stack if stacked else _plot)(axes, steps, values)
        _scale(axes, values, unit, from_zero)
        if len(values) > 1:
            axes.legend(
                loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=4, fontsize=9
            )
        file = io.StringIO()
        figure.savefig(
            file,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None},
        )
    return _embedded(file.getvalue(), name)


def _stack(axes: Any, steps: Sequence[int], values: Values) -> None:
    heights = [[0.0 if math.isnan(y) else y for y in line] for line in values.values()]
    axes.stackplot(
        steps, *heights, labels=list(values), colors=_COLORS, alpha=0.85, linewidth=0
    )


def _plot(axes: Any, steps: Sequence[int], values: Values) -> None:
    for index, (label, line) in enumerate(values.items()):
        is_named = index < len(_COLORS)
        axes.plot(
            steps,
            line,
            label=label if is_named else None,
            color=_COLORS[index] if is_named else _OTHERS,
            alpha=1.0 if is_named else 0.5,
            zorder=3 - index / len(values),
            marker="o" if len(steps) <= _FEW else None,
            markersize=4,
        )


def _floats(line: Line) -> list[float]:
    return [math.nan if value is None else float(value) for value in line]


def _scale(axes: Any, values: Values, unit: str, from_zero: bool) -> None:
    from matplotlib import ticker

    known = [y for line in values.values() for y in line if not math.isnan(y)]
    most = max(map(abs, known), default=0.0)
    if unit == "%":
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    elif unit or most >= 10:
        space = " " if unit else ""
        axes.yaxis.set_major_formatter(ticker.EngFormatter(unit=unit, sep=space))
    else:
        axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    axes.yaxis.set_major_locator(ticker.MaxNLocator(5))
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    axes.annotate(
        "step",
        (1, 0),
        (0, -17),
        "axes fraction",
        "offset points",
        ha="right",
        va="top",
    )
    axes.margins(x=0.01)
    if from_zero:
        axes.set_ylim(bottom=0, top=None if most else 1)


def _embedded(svg: str, name: str) -> str:
    """The element alone: it grows with the page, and has the colours of its text."""
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    # The font of the page; matplotlib's own names ten.
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    label = name.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
