"""A run in the terminal: the frame that `tfctr top` shows."""

import importlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfctr.report.events import Event, EventReader
from tfctr.report.history import History, all_tables, speed, time_shares
from tfctr.report.numbers import duration, metric, moment, percent, short
from tfctr.report.table_counts import compact, has_disk, tiers

if TYPE_CHECKING:
    from rich.console import RenderableType

# In characters.
_BAR = 40
_SPARKLINE = 32
_COLORS = {"input": "blue", "lookup": "yellow", "dense": "green", "update": "red"}
# Columns of tables that have such counts.
_EXTRA = (
    ("refused", "refused_keys", lambda counts: short(counts.get("refused_keys", 0))),
    ("clipped", "clipped_rows", lambda counts: percent(counts.get("clipped_share"))),
)
# A run that is silent for so many of its intervals is called so.
_SILENCE = 3.0


def check_rich() -> None:
    """Raises `ValueError` unless `show` and `follow` can draw."""
    try:
        importlib.import_module("rich")
    except ImportError as error:
        raise ValueError(
            "`tfctr top` draws with rich. Received: an environment without it "
            f"({error}). Install it: pip install rich."
        ) from error


def show(directory: str | os.PathLike[str]) -> None:
    """Prints one frame.

    Args:
        directory: Path of the run.

    Raises:
        ValueError: If it has no events.
    """
    from rich.console import Console

    history = History()
    history.add(EventReader(directory).read())
    Console().print(frame(history, str(directory), time.time()))


def follow(directory: str | os.PathLike[str], interval: float) -> None:
    """Shows a run until the user interrupts it.

    Args:
        directory: Path of the run.
        interval: Float. Seconds between two looks at the events.

    Raises:
        ValueError: If it has no events, or standard output is no terminal.
    """
    from rich.console import Console
    from rich.live import Live

    reader, history, name = EventReader(directory), History(), str(directory)
    if not Console().is_terminal:
        raise ValueError(
            "`tfctr top` draws on a terminal, again and again. Received: standard "
            "output that is none. Print one frame: tfctr top --once."
        )
    history.add(reader.read())
    try:
        with Live(frame(history, name, time.time()), auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                history.add(reader.read())
                live.update(frame(history, name, time.time()), refresh=True)
    except KeyboardInterrupt:
        pass


def frame(history: History, name: str, now: float) -> "RenderableType":
    """Returns what the terminal shows of a run.

    Args:
        history: `History`.
        name: String. What the run is called.
        now: Float. Seconds since the epoch.
    """
    from rich.console import Group
    from rich.text import Text

    title = Text(name, style="bold")
    if not history.intervals:
        return Group(title, Text("No step has been told of yet.", style="dim"))
    last, whole = history.intervals[-1], history.total()
    state = Text(_state(history, last, now), style="dim")
    parts: list[RenderableType] = [title, state, Text(), _numbers(history, last, whole)]
    parts.append(_time(last))
    if whole["tables"]:
        parts += [Text(), _tables(whole, last)]
    return Group(*parts)


def _state(history: History, last: Event, now: float) -> str:
    ranks = "" if history.ranks == 1 else f" on {history.ranks} ranks"
    told = now - last["time"]
    silent = told > max(_SILENCE * last["seconds"], 15.0)
    ago = f", told {duration(told)} ago" if silent else ""
    part = "window" if history.has_windows else "epoch"
    return f"{part} {last['epoch'] + 1:,}, step {last['step']:,}{ranks}{ago}"


def _numbers(history: History, last: Event, whole: Event) -> "RenderableType":
    from rich.markup import escape
    from rich.table import Table

    grid = Table.grid(padding=(0, 3))
    speeds = [speed(event) for event in history.warm()[-_SPARKLINE:]]
    mean = short(speed(history.warm_total()))
    facts = {
        "examples/s": f"{short(speed(last))}  (mean {mean})",
        "examples": short(whole["examples"]),
        "training": duration(whole["seconds"]),
    }
    newest = {**last["metrics"]}
    for epoch in history.epochs[-1:]:
        of_epoch = epoch["metrics"].items()
        newest |= {key: value for key, value in of_epoch if key.startswith("val_")}
    for window in history.windows[-1:]:
        newest |= window["metrics"]
    grid.add_row(*(f"[dim]{key}[/] [bold]{text}[/]" for key, text in facts.items()))
    metrics = (
        f"[dim]{escape(key)}[/] [bold]{metric(value)}[/]"
        for key, value in newest.items()
    )
    rows: list[RenderableType] = [grid, "  ".join(metrics)]
    for window in history.windows[-1:]:
        rows.append(f"[dim]window of {moment(window['start'])}[/]")
    if len(speeds) > 1:
        rows.append(f"[cyan]{sparkline(speeds)}[/] [dim]examples/s[/]")
    return _group(rows)


def _time(last: Event) -> "RenderableType":
    from rich.text import Text

    shares = time_shares(last)
    bar, legend = Text(), Text()
    ends, filled = 0.0, 0
    for part, share in shares.items():
        ends += share
        width = round(ends * _BAR) - filled
        bar.append("█" * width, style=_COLORS[part])
        filled += width
        legend.append(f"  {part} ", style=_COLORS[part])
        legend.append(percent(share))
    return _group([bar + legend])


def _tables(whole: Event, last: Event) -> "RenderableType":
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("table", overflow="fold")
    table.add_column("tier", style="dim")
    tables = dict(whole["tables"])
    # Most trainings refuse and clip nothing.
    extra = {
        head: write
        for head, name, write in _EXTRA
        if any(counts.get(name) for counts in tables.values())
    }
    columns = ["rows", "bytes", "hit rate", "evicted"]
    if any(map(has_disk, tables.values())):
        columns += ["reads", "writes", "stalls"]
    for head in (*columns, *extra):
        table.add_column(head, justify="right", no_wrap=True)
    newest = {name: compact(counts) for name, counts in last["tables"].items()}
    if len(tables) > 1:
        tables["all tables"], newest["all tables"] = all_tables(whole), all_tables(last)
    for name, counts in tables.items():
        of_now = {tier["tier"]: tier for tier in tiers(newest.get(name, {}))}
        for index, tier in enumerate(tiers(counts)):
            cells = _tier_cells(tier, of_now.get(tier["tier"], {}))
            extras = ["" if index else write(counts) for write in extra.values()]
            table.add_row(
                "" if index else escape(name),
                tier["tier"],
                *cells[: len(columns)],
                *extras,
                style="bold" if name == "all tables" else None,
            )
    return table


def _tier_cells(tier: Mapping[str, Any], newest: Mapping[str, Any]) -> list[str]:
    """Counts are of the whole run, the hit rate is that of the last interval."""
    return [
        short(tier["rows"]),
        short(tier["bytes"], "B") if "bytes" in tier else "",
        percent(newest.get("hit_rate")) if "hit_rate" in tier else "",
        *(
            short(tier[key]) if key in tier else ""
            for key in ("evictions", "reads", "writes")
        ),
        f"{short(tier['stalls'])} / {duration(tier['stalled_seconds'])}"
        if "stalls" in tier
        else "",
    ]


def sparkline(values: Sequence[float | None]) -> str:
    """Returns a bar of eight heights for each value, the highest one full."""
    most = max((value for value in values if value), default=1.0)
    return "".join(
        " " if value is None else "▁▂▃▄▅▆▇█"[min(7, int(8 * value / most))]
        for value in values
    )


def _group(parts: Sequence["RenderableType"]) -> "RenderableType":
    from rich.console import Group

    return Group(*parts)
