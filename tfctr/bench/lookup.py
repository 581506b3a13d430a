"""`bench lookup`: how an export finds the rows of its keys, beside other structures.

All are made of TensorFlow's own ops, since a server has no others: the perfect hash
that exports have, sorted keys with a binary search, `StaticHashTable`, and buckets of
fixed width. `gather_alone` is told the numbers of the rows, and is the least that any
of them can take.
"""

import dataclasses
from typing import Any

from tfctr.bench import report, systems
from tfctr.bench.rounds import Turns
from tfctr.bench.session import Session, common_facts
from tfctr.bench.summary import median, ratio, ratio_interval
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import Workload

STRUCTURES = (
    "gather_alone",
    "perfect_hash",
    "bucketed_hash",
    "static_hash_table",
    "sorted_keys",
)
OURS = "perfect_hash"
KIND = "lookup"
# Requests of 512 examples, enough that none comes twice soon.
SMALL = Workload(rows_per_field=20_000, batch_size=512, num_batches=200)
LARGE = Workload(rows_per_field=385_000, batch_size=512, num_batches=200)
TURNS = Turns(rounds=6, steps=40, untimed=5)
SECONDS = 400.0


def run(
    tables: dict[str, Workload] | None = None,
    turns: Turns = TURNS,
    seconds: float = SECONDS,
    wait_seconds: float = 20.0,
) -> dict[str, Any]:
    """Measures a lookup of one batch in each structure, in turns.

    Args:
        tables: Workloads by name. `None` means `small`, of half a million rows, and
            `large`, of ten million.
        turns: How often and how long each is measured; a step is one lookup.
        seconds: Float. When to be done.
        wait_seconds: Float. The longest wait for a quiet machine, of each table.

    Returns:
        A dict for JSON: `rows` with the median milliseconds of each structure and
        table, and the seconds to build it in a process, its first lookup included;
        `ratios` of each structure to the perfect hash, their bootstrap `intervals`;
        `machine` and `versions`.
    """
    tables = {"small": SMALL, "large": LARGE} if tables is None else tables
    session = Session(seconds, wait_seconds)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for name, workload in tables.items():
        options = Options({name: workload}, STRUCTURES, (KIND,))
        request = (systems.tfctr("lookup_structures"), options)
        measured = session.measure([request], turns)
        found = {
            structure: measured.samples["tfctr", f"{KIND}/{name}/{structure}"]
            for structure in STRUCTURES
        }
        built = measured.facts["tfctr"]["build_seconds"]
        for structure, times in found.items():
            rows.append(
                {
                    "table": name,
                    "structure": structure,
                    "ms": median(times),
                    "build_seconds": built[structure],
                    "lookups": len(times),
                }
            )
            if structure != OURS:
                pair = (times, found[OURS])
                ratios[f"{name}/{structure}"] = ratio(*pair)
                intervals[f"{name}/{structure}"] = ratio_interval(*pair)
    return {
        **common_facts("lookup", options, turns),
        "workloads": {n: dataclasses.asdict(each) for n, each in tables.items()},
        "rows": rows,
        "ratios": ratios,
        "intervals": intervals,
        **session.record(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = report.columns(
        ["table", "structure", "median ms", "built s", "lookups"],
        [
            [
                row["table"],
                row["structure"],
                f"{row['ms']:.3f}",
                f"{row['build_seconds']:.1f}",
                str(row["lookups"]),
            ]
            for row in result["rows"]
        ],
    )
    ratios = report.ratio_lines(result["ratios"], result["intervals"])
    return report.page(result, lines, ["over perfect_hash:", *ratios])
