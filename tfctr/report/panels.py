"""Which plots a run has."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tfctr.report.events import Event
from tfctr.report.history import PARTS, History, all_tables, speed, time_shares
from tfctr.report.plots import draw
from tfctr.report.table_counts import has_disk

# More would not show, and would make the page large.
_MAX_POINTS = 300
_MAX_METRICS = 4


class Panel(NamedTuple):
    """A plot and what it shows.

    Attributes:
        title: String.
        note: String. What the title does not say.
        svg: String.
    """

    title: str
    note: str
    svg: str


def panels(history: History) -> list[Panel]:
    """Returns the plots of a run; none before its first interval."""
    points = history.thinned(_MAX_POINTS)
    if not points:
        return []
    return [
        *_of_windows(history.windows),
        *_of_training(points, history),
        *_of_tables(points, history),
    ]


def _of_training(points: Sequence[Event], history: History) -> list[Panel]:
    steps = [point["step"] for point in points]
    found = []
    if any(speed(point) is not None for point in points):
        line = {"examples": [speed(point) for point in points]}
        title, note = "Examples per second", "of all ranks"
        found.append(Panel(title, note, draw(title, steps, line)))
    shares = [time_shares(point) for point in points]
    each = [point["seconds"] / max(point["steps"], 1) for point in points]
    parts = [part for part in PARTS if any(part in share for share in shares)]
    times: dict[str, list[float | None]] = {
        part: [
            share.get(part, 0.0) * took
            for share, took in zip(shares, each, strict=True)
        ]
        for part in parts
    }
    title, note = "Time of a step", "by what it was spent on"
    found.append(Panel(title, note, draw(title, steps, times, "s", stacked=True)))
    names = dict.fromkeys(name for point in points for name in point["metrics"])
    for name in list(names)[:_MAX_METRICS]:
        line = {name: [point["metrics"].get(name) for point in points]}
        note = "running mean of the epoch"
        found.append(
            Panel(name, note, draw(f"metric {name}", steps, line, from_zero=False))
        )
    epochs = history.epochs
    for name in dict.fromkeys(
        name for epoch in epochs for name in epoch["metrics"] if name.startswith("val_")
    ):
        line = {name: [epoch["metrics"].get(name) for epoch in epochs]}
        steps = [epoch["step"] for epoch in epochs]
        svg = draw(f"metric {name}", steps, line, from_zero=False)
        found.append(Panel(name, "at the end of each epoch", svg))
    return found


def _of_windows(windows: Sequence[Event]) -> list[Panel]:
    """How the model did on each window before it was trained on it."""
    size = -(-len(windows) // _MAX_POINTS) or 1
    parts = [windows[i : i + size] for i in range(0, len(windows), size)]
    steps = [part[-1]["step"] for part in parts]

    def line(name: str) -> list[float | None]:
        return [
            _mean([window["metrics"].get(name) for window in part]) for part in parts
        ]

    names = dict.fromkeys(name for window in windows for name in window["metrics"])
    aucs = {
        name.removesuffix("_auc").replace("_", " "): line(name)
        for name in names
        if name == "auc" or name.endswith("_auc")
    }
    found = []
    for title, note, lines in (
        ("AUC", "of each window, before it was trained on", aucs),
        ("Log loss", "the same", {"log loss": line("log_loss")}),
    ):
        if any(value is not None for values in lines.values() for value in values):
            svg = draw(f"window {title}", steps, lines, from_zero=False)
            found.append(Panel(f"{title} of the windows", note, svg))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _of_tables(points: Sequence[Event], history: History) -> list[Panel]:
    if not any(point["tables"] for point in points):
        return []
    steps = [point["step"] for point in points]
    whole = [all_tables(point) for point in points]
    last = points[-1]["tables"]
    found = []

    def add(title: str, note: str, lines: dict[str, Any], unit: str = "") -> None:
        found.append(Panel(title, note, draw(title, steps, lines, unit)))

    def each(
        value: Callable[[dict[str, Any]], float | None], order: str
    ) -> dict[str, Any]:
        names = sorted(last, key=lambda name: -last[name].get(order, 0))
        return {
            name: [value(point["tables"].get(name, {})) for point in points]
            for name in names
        }

    def a_step(name: str) -> list[float]:
        return [
            table.get(name, 0) / max(point["steps"], 1)
            for table, point in zip(whole, points, strict=True)
        ]

    add("Rows", "of each table, in all tiers", each(_rows, "known_rows"))
    bytes_of = {"ram": [table.get("memory_bytes", 0) for table in whole]}
    if any(map(has_disk, whole)):
        bytes_of["ssd"] = [table.get("disk_bytes", 0) for table in whole]
    add("Bytes", "of all tables, by tier", bytes_of, "B")
    add(
        "Hit rate of memory",
        "rows of lookups that were there, of each table",
        each(lambda table: table.get("hit_rate"), "found_rows"),
        "%",
    )
    counts = {
        "Rows read and written": (
            "on disk, a step, of all tables",
            {"read": "rows_read", "written": "rows_written"},
        ),
        "Evictions": (
            "rows that left memory, and that expired, a step",
            {"evicted": "evicted_rows", "expired": "expired_rows"},
        ),
        "Admission": (
            "keys of lookups a step",
            {"admitted": "inserted_rows", "refused": "refused_keys"},
        ),
    }
    for title, (note, names) in counts.items():
        chief = "refused_keys" if title == "Admission" else None
        asked = [chief] if chief else list(names.values())
        if any(table.get(name) for table in whole for name in asked):
            add(title, note, {label: a_step(name) for label, name in names.items()})
    if any(table.get("stalled_lookups") for table in whole):
        stalled = [
            table.get("stalled_nanoseconds", 0) * 1e-9 / max(point["steps"], 1)
            for table, point in zip(whole, points, strict=True)
        ]
        note = "that lookups waited for the disk, a step, added up over the tables"
        add("Stalls", note, {"stalls": stalled}, "s")
    if any(table.get("clipped_rows") for table in whole):
        add(
            "Clipped share",
            "of the updated rows, of each table",
            each(lambda table: table.get("clipped_share"), "updated_rows"),
            "%",
        )
    return found


def _rows(table: dict[str, Any]) -> float:
    return float(table.get("rows", 0) + table.get("rows_on_disk_only", 0))
