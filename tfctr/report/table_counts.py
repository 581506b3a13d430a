"""What is told of a table: what it holds, and what it did since the last time."""

from collections.abc import Iterable, Mapping
from typing import Any

# What a table holds: of several ranks, the sum; over time, the last.
SIZES = (
    "rows",
    "known_rows",
    "memory_bytes",
    "rows_on_disk_only",
    "disk_bytes",
    "hot_rows",
    "tracked_keys",
    "admission_bytes",
)
# What it did: of several ranks and over time, the sum.
COUNTS = (
    "found_rows",
    "promoted_rows",
    "inserted_rows",
    "refused_keys",
    "updated_rows",
    "clipped_rows",
    "skipped_updates",
    "evicted_rows",
    "demoted_rows",
    "expired_rows",
    "rows_read",
    "rows_written",
    "stalled_lookups",
    "stalled_nanoseconds",
)

Table = dict[str, Any]


def changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> Table:
    """Returns the sizes of `now`, and what was counted since `before`.

    Args:
        now: Dict, as `DynamicEmbedding.stats` gives it for a table.
        before: The same of an earlier moment; empty for none.
    """
    sizes = {name: now.get(name, 0) for name in SIZES}
    counts = {name: now.get(name, 0) - before.get(name, 0) for name in COUNTS}
    return compact({**sizes, **counts})


def total(tables: Iterable[Table]) -> Table:
    """Returns what several tables, or the shards of one, hold and did together."""
    tables = list(tables)
    names = (*SIZES, *COUNTS)
    return compact({name: sum(of.get(name, 0) for of in tables) for name in names})


def over_time(tables: Iterable[Table]) -> Table:
    """Returns what a table holds at the end of some intervals, and did in all."""
    tables = list(tables)
    sizes = {name: tables[-1].get(name, 0) for name in SIZES} if tables else {}
    return compact({**total(tables), **dict.fromkeys(SIZES, 0), **sizes})


def compact(table: Table) -> Table:
    """Returns what is not 0, with the shares that follow: most counts stay 0 for ever.

    `hit_rate` is the share of the rows of lookups that were in memory, `ssd_hit_rate`
    that of the others that were on disk, `clipped_share` that of the updated rows whose
    gradient was clipped.
    """
    get = {name: value for name, value in table.items() if value}.get
    found, promoted = get("found_rows", 0), get("promoted_rows", 0)
    missed = promoted + get("inserted_rows", 0)
    shares = {"clipped_share": _share(get("clipped_rows", 0), get("updated_rows", 0))}
    if found + missed:
        shares["hit_rate"] = found / (found + missed)
    if has_disk(table):
        shares["ssd_hit_rate"] = _share(promoted, missed)
    kept = {name: get(name) for name in (*SIZES, *COUNTS) if get(name)}
    return kept | {name: share for name, share in shares.items() if share is not None}


def has_disk(table: Mapping[str, Any]) -> bool:
    """Whether a table has rows on disk, or had some."""
    names = ("disk_bytes", "rows_on_disk_only", "rows_written", "promoted_rows")
    return any(table.get(name) for name in names)


def tiers(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the tiers of a table, the fastest first: name, and numbers by column.

    A number that a tier does not have is missing.
    """
    hot = table.get("hot_rows", 0)
    found: list[dict[str, Any]] = []
    if hot:
        found.append(
            {"tier": "hbm", "rows": hot, "evictions": table.get("demoted_rows", 0)}
        )
    found.append(
        {
            "tier": "ram",
            "rows": table.get("rows", 0) - hot,
            "bytes": table.get("memory_bytes", 0),
            "hit_rate": table.get("hit_rate"),
            "evictions": table.get("evicted_rows", 0),
        }
    )
    if has_disk(table):
        found.append(
            {
                "tier": "ssd",
                "rows": table.get("rows_on_disk_only", 0),
                "bytes": table.get("disk_bytes", 0),
                "hit_rate": table.get("ssd_hit_rate"),
                "reads": table.get("rows_read", 0),
                "writes": table.get("rows_written", 0),
                "stalls": table.get("stalled_lookups", 0),
                "stalled_seconds": table.get("stalled_nanoseconds", 0) * 1e-9,
            }
        )
    return found


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
