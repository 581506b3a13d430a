"""The page of a run: one HTML file that needs nothing else."""

import html
import os
import pathlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tfctr.report.events import FILE_NAME as EVENTS
from tfctr.report.events import Event, has_events
from tfctr.report.history import PARTS, History, all_tables, speed, time_shares
from tfctr.report.numbers import duration, metric, moment, percent, short
from tfctr.report.panels import panels
from tfctr.report.style import STYLE
from tfctr.report.table_counts import tiers

FILE_NAME = "report.html"

# The policy forbids what a page on its own must not do: ask the network for anything.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{subtitle}</p></header>
<main>
{body}
</main>
</body>
</html>
"""
# A column: its heading, the number of a row, and how it is written.
_TIER_COLUMNS = (
    ("rows", "rows", short),
    ("bytes", "bytes", lambda value: short(value, "B")),
    ("hit rate", "hit_rate", percent),
    ("evictions", "evictions", short),
    ("reads", "reads", short),
    ("writes", "writes", short),
    ("stalls", "stalls", short),
    ("stalled", "stalled_seconds", duration),
)
_TABLE_COLUMNS = (
    ("admitted", "inserted_rows", short),
    ("refused", "refused_keys", short),
    ("updated", "updated_rows", short),
    ("clipped", "clipped_share", percent),
    ("expired", "expired_rows", short),
    ("skipped updates", "skipped_updates", short),
)

_COUNT_COLUMNS = (
    ("rows", "known_rows"),
    ("admitted", "inserted_rows"),
    ("refused", "refused_keys"),
    ("evicted", "evicted_rows"),
    ("expired", "expired_rows"),
)
# A run may have thousands; the plots show all.
_MAX_WINDOWS = 100


def write_page(history: History, directory: str | os.PathLike[str]) -> pathlib.Path:
    """Writes the page of a run into its directory; whoever reads it sees a whole one.

    Args:
        history: `History`.
        directory: Path of the run.

    Raises:
        OSError: If the file cannot be written.
    """
    path = pathlib.Path(directory) / FILE_NAME
    partial = path.with_name(f"partial.{path.name}")
    try:
        partial.write_text(render(history, str(directory)), "utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def is_behind(directory: str | os.PathLike[str]) -> bool:
    """Returns whether a run has told of something since its page was drawn."""
    if not has_events(directory):
        return False
    events, page = pathlib.Path(directory, EVENTS), pathlib.Path(directory, FILE_NAME)
    return not page.exists() or page.stat().st_mtime_ns < events.stat().st_mtime_ns


def render(history: History, name: str) -> str:
    """Returns the page of a run as HTML.

    Args:
        history: `History`.
        name: String. What the run is called.
    """
    whole = history.total()
    body = [_cards(history, whole), _time(history.warm_total())]
    if history.epochs:
        body.append(_section("Epochs", _epochs(history.epochs)))
    if history.windows:
        body.append(_windows(history.windows))
    figures = "".join(
        f"<figure><figcaption>{html.escape(panel.title)} "
        f"<span>{html.escape(panel.note)}</span></figcaption>{panel.svg}</figure>"
        for panel in panels(history)
    )
    body.append(_section("Over the steps", f'<div class="plots">{figures}</div>'))
    if whole["tables"]:
        body.append(_section("Tables", _tables(whole)))
    return _PAGE.format(
        title=html.escape(f"Training {name}"),
        subtitle=html.escape(_subtitle(history, whole)),
        style=STYLE,
        body="\n".join(body),
    )


def _subtitle(history: History, whole: Event) -> str:
    if not history.intervals:
        return "No step has been told of yet."
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(whole["time"]))
    ranks = "one rank" if history.ranks == 1 else f"{history.ranks} ranks"
    return f"Up to step {whole['step']:,} on {ranks}, as of {when}"


def _cards(history: History, whole: Event) -> str:
    tables = all_tables(whole)
    rows = tables.get("rows", 0) + tables.get("rows_on_disk_only", 0)
    cards: list[tuple[str, Any, str]] = [
        ("steps", whole["steps"], short(whole["steps"])),
        ("examples", whole["examples"], short(whole["examples"])),
        ("examples per second", *_both(speed(history.warm_total()), short)),
        ("training time", *_both(whole["seconds"], duration)),
    ]
    if whole["tables"]:
        cards += [
            ("rows in tables", rows, short(rows)),
            ("tables in memory", *_both(tables.get("memory_bytes", 0), _bytes)),
        ]
        if "disk_bytes" in tables:
            cards.append(("tables on disk", *_both(tables["disk_bytes"], _bytes)))
        cards.append(("hit rate of memory", *_both(tables.get("hit_rate"), percent)))
    newest = (history.windows or history.epochs or history.intervals or [whole])[-1]
    for name, value in newest["metrics"].items():
        cards.append((name, value, metric(value)))
    texts = (
        f'<div class="card"{_data(value)}><b>{html.escape(text)}</b>'
        f"<span>{html.escape(label)}</span></div>"
        for label, value, text in cards
        if value is not None
    )
    return f'<div class="cards">{"".join(texts)}</div>'


def _time(warm: Event) -> str:
    shares = time_shares(warm)
    if not shares:
        return ""
    bar = "".join(
        f'<div class="{part}" style="width:{100 * share:.2f}%"></div>'
        for part, share in shares.items()
    )
    legend = "".join(
        f'<span data-part="{part}"{_data(share)}><i class="{part}"></i>{part} '
        f"{percent(share)}</span>"
        for part, share in shares.items()
    )
    notes = [
        "Input: waiting for the next batch. Lookup and update: at least one table is "
        "at it. Dense: the rest, with the exchange between ranks and the work of "
        "Keras. The step that compiles is left out."
    ]
    if "input" not in shares:
        notes.append(
            "Input was not measured: train on report.watch(dataset). It is in dense."
        )
    text = html.escape(" ".join(notes))
    content = (
        f'<div class="bar">{bar}</div><div class="legend">{legend}</div><p>{text}</p>'
    )
    return _section("Where the time goes", content)


def _epochs(epochs: Sequence[Event]) -> str:
    names = dict.fromkeys(name for epoch in epochs for name in epoch["metrics"])
    heads = [
        "epoch",
        "steps",
        "examples",
        "time",
        "examples/s",
        *PARTS,
        *names,
    ]
    rows = []
    for epoch in epochs:
        shares = time_shares(epoch)
        cells = [
            (epoch["steps"], short(epoch["steps"])),
            _both(epoch["examples"], short),
            _both(epoch["seconds"], duration),
            _both(speed(epoch), short),
            *(_both(shares.get(part), percent) for part in PARTS),
            *(_both(epoch["metrics"].get(name), metric) for name in names),
        ]
        rows.append(_row(f"{epoch['epoch'] + 1}", "", heads[1:], cells))
    return _table(heads, 1, rows)


def _windows(windows: Sequence[Event]) -> str:
    shown = windows[-_MAX_WINDOWS:]
    names = dict.fromkeys(name for window in shown for name in window["metrics"])
    counts = [head for head, _ in _COUNT_COLUMNS]
    heads = ["window", "steps", "examples", "examples/s", *names, *counts]
    rows = []
    for window in shown:
        tables = all_tables(window)
        cells = [
            (window["steps"], short(window["steps"])),
            _both(window["examples"], short),
            _both(speed(window), short),
            *(_both(window["metrics"].get(name), metric) for name in names),
            *(_both(tables.get(key, 0), short) for _, key in _COUNT_COLUMNS),
        ]
        rows.append(_row(moment(window["start"]), "", heads[1:], cells))
    title = "Windows"
    if len(shown) < len(windows):
        title = f"The last {len(shown):,} of {len(windows):,} windows"
    note = (
        "<p>By when they begin, in UTC. The model was tested on each before it was "
        "trained on it: of that are the metrics, but for the loss.</p>"
    )
    return _section(title, note + _table(heads, 1, rows))


def _tables(whole: Event) -> str:
    tables = {**whole["tables"]}
    if len(tables) > 1:
        tables["all tables"] = all_tables(whole)
    used_tiers = [tier for table in tables.values() for tier in tiers(table)]
    columns = [c for c in _TIER_COLUMNS if any(c[1] in tier for tier in used_tiers)]
    others = [
        c for c in _TABLE_COLUMNS if any(table.get(c[1]) for table in tables.values())
    ]
    heads = [head for head, *_ in (*columns, *others)]
    rows = []
    for name, table in tables.items():
        for index, tier in enumerate(tiers(table)):
            cells = [_both(tier.get(key), write) for _, key, write in columns]
            # What is of the table and of no tier stands in its first line.
            cells += [
                _both(table.get(key, 0), write) if index == 0 else (None, "")
                for _, key, write in others
            ]
            rows.append(_row("" if index else name, tier["tier"], heads, cells))
    return _table(["table", "tier", *heads], 2, rows)


def _row(
    name: str, tier: str, heads: Iterable[str], cells: Iterable[tuple[Any, str]]
) -> str:
    first = f'<th scope="row">{html.escape(name)}</th>'
    second = f'<td class="name">{tier}</td>' if tier else ""
    rest = "".join(
        f'<td data-column="{html.escape(head)}"{_data(value)}>{html.escape(text)}</td>'
        for head, (value, text) in zip(heads, cells, strict=True)
    )
    return f"<tr{'' if name else ' class=more'}>{first}{second}{rest}</tr>"


def _table(heads: Sequence[str], names: int, rows: Iterable[str]) -> str:
    head = "".join(
        f"<th{' class=name' if index < names else ''}>{html.escape(text)}</th>"
        for index, text in enumerate(heads)
    )
    return (
        f'<div class="table"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _both(value: Any, write: Any) -> tuple[Any, str]:
    return value, write(value)


def _bytes(value: float) -> str:
    return short(value, "B")


def _data(value: Any) -> str:
    """The exact number beside the text that is rounded, for programs."""
    return "" if value is None else f' data-value="{html.escape(str(value))}"'
