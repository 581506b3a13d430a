"""`bench snapshot`: saving a table while it is trained, and what a key costs.

A snapshot of all rows; of the rows that were trained since the last one, for several
shares of them; and back again. Then training steps while a snapshot is written. And the
memory of as many keys as can be inserted in the time.
"""

from typing import Any

from tfctr.bench import report, systems
from tfctr.bench.disk import row_bytes, scratch
from tfctr.bench.grow import BATCH_SIZE
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.session import Session, common_facts
from tfctr.bench.summary import median
from tfctr.bench.workers.options import SPARSE, WHOLE, Options
from tfctr.bench.workload import Workload

TABLE = Workload(rows_per_field=200_000)
# All of them first: the others then are the difference to it.
PERCENTS = (100, 1, 3, 10, 30)
OPTIMIZERS = ("adagrad",)
RAM_SHARE = 0.1
KEYS = 20_000_000
GROW_ROUNDS = 10
SECONDS = 230.0
# What the keys need of it.
KEY_SECONDS = 40.0
ROUNDS = 3

# By system and kind, what each experiment of it found.
Found = dict[str, dict[str, list[dict[str, Any]]]]


def run(
    workload: Workload = TABLE,
    keys: int = KEYS,
    rounds: int = ROUNDS,
    directory: str | None = None,
    seconds: float = SECONDS,
    wait_seconds: float = 20.0,
) -> dict[str, Any]:
    """Saves, restores and trains a table in memory and one over SSD.

    Args:
        workload: The ids and sizes of the table.
        keys: Integer. Keys of the table whose memory is measured, when time allows.
        rounds: Integer. How often each table is saved and restored, when time allows.
        directory: Where to keep the files. `None` means the current directory.
        seconds: Float. When to be done.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `saves`, a line for each table and share of the rows trained,
        with seconds and counts; `restores`; `steps`, with the median step and the
        longest, without a snapshot and with; `keys`, with the bytes of a key and the
        forecast; `machine` and `versions`.

    Raises:
        ValueError: If the disk has too little room.
    """
    kinds = (*(f"save {percent}" for percent in PERCENTS), "restore", SPARSE, WHOLE)
    turns = Turns(rounds, steps=1, untimed=0)
    session = Session(seconds, wait_seconds)
    bytes_in_rows = workload.num_rows * row_bytes(workload.dim)
    with scratch(directory, 8 * bytes_in_rows) as place:
        requests = []
        for name, storage in (
            ("tfctr", {}),
            ("tfctr_ssd", {"ram": int(RAM_SHARE * bytes_in_rows)}),
        ):
            own = place / name
            own.mkdir()
            options = Options(
                {"table": workload},
                OPTIMIZERS,
                kinds,
                storage={"ssd": str(own), **storage},
            )
            requests.append((systems.tfctr("snapshot_tfctr", name), options))
        saved = session.measure(requests, turns, reserve=KEY_SECONDS)
    steps = max(keys // (BATCH_SIZE * GROW_ROUNDS), 1)
    growing = Workload(num_fields=1, batch_size=min(BATCH_SIZE, keys))
    options = Options({"keys": growing}, OPTIMIZERS, steps=steps * GROW_ROUNDS)
    grown = session.measure(
        [(systems.tfctr("grow_tfctr"), options)],
        Turns(GROW_ROUNDS, steps=steps, untimed=0),
    )
    found = {system: facts["found"] for system, facts in saved.facts.items()}
    return {
        **common_facts("snapshot", requests[0][1], turns),
        "saves": save_rows(found),
        "restores": restore_rows(found),
        "steps": step_rows(found),
        "keys": key_row(grown),
        "facts": saved.facts,
        **session.record(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    saves = report.columns(
        [
            "table",
            "trained",
            "seconds",
            "device",
            "rows written",
            "M written/s",
            "M rows/s",
            "MB",
        ],
        [
            [
                row["system"],
                f"{row['percent']} %",
                f"{row['seconds']:.2f}",
                f"{row['device_seconds']:.2f}",
                f"{row['rows_written']:,}",
                f"{row['rows_written'] / row['seconds'] / 1e6:.2f}",
                f"{row['rows'] / row['seconds'] / 1e6:.2f}",
                f"{row['bytes'] / 1e6:.0f}",
            ]
            for row in result["saves"]
        ],
    )
    restores = [
        f"{row['system']}: {row['rows']:,} rows restored in {row['seconds']:.2f} s, "
        f"{row['rows_per_second'] / 1e6:.2f} M rows/s"
        for row in result["restores"]
    ]
    steps = report.columns(
        [
            "table",
            "step",
            "median ms",
            "while saving",
            "longest alone",
            "while saving",
            "longest cut",
            "over median",
            "over twice",
        ],
        [
            [
                row["system"],
                row["kind"],
                f"{row['ms']:.2f}",
                f"{row['saving_ms']:.2f}",
                f"{row['longest_alone_ms']:.2f}",
                f"{row['longest_ms']:.2f}",
                f"{row['longest_begin_ms']:.2f}",
                f"{row['longest_over_median']:.2f}",
                f"{row['share_over_twice']:.1%}",
            ]
            for row in result["steps"]
        ],
    )
    key = result["keys"]
    keys = (
        f"{key['keys']:,} keys: {key['bytes_per_key']:.1f} bytes a key, "
        f"{key['resident_bytes_per_key']:.1f} as the system counts; forecast "
        f"{key['forecast_bytes_per_key']:.1f}, and {key['forecast_at_100m']:.1f} at "
        "100 million"
    )
    return report.page(result, saves, restores, steps, [keys])


def save_rows(found: Found) -> list[dict[str, Any]]:
    """A line for each table and share: median seconds, counts of the last snapshot."""
    return [
        {
            "system": system,
            "percent": percent,
            **saves[-1],
            "seconds": median([save["seconds"] for save in saves]),
            "device_seconds": median([save["device_seconds"] for save in saves]),
            "snapshots": len(saves),
        }
        for system, kinds in found.items()
        for percent in sorted(PERCENTS)
        for saves in [kinds[f"save {percent}"]]
    ]


def restore_rows(found: Found) -> list[dict[str, Any]]:
    """A line for each table."""
    rows = []
    for system, kinds in found.items():
        seconds = median([restore["seconds"] for restore in kinds["restore"]])
        count = kinds["restore"][-1]["rows"]
        rows.append(
            {
                "system": system,
                "rows": count,
                "seconds": seconds,
                "rows_per_second": count / seconds,
            }
        )
    return rows


def step_rows(found: Found) -> list[dict[str, Any]]:
    """A line for each table and kind of step; the longest is that of all snapshots."""
    rows = []
    for system, kinds in found.items():
        for kind in (SPARSE, WHOLE):
            alone = [ms for one in kinds[kind] for ms in one["alone_ms"]]
            saving = [ms for one in kinds[kind] for ms in one["saving_ms"]]
            rows.append(
                {
                    "system": system,
                    "kind": kind,
                    "ms": median(alone),
                    "saving_ms": median(saving),
                    "longest_alone_ms": max(alone),
                    "longest_ms": max(saving),
                    "longest_begin_ms": max(one["begin_ms"] for one in kinds[kind]),
                    "longest_over_median": max(saving) / median(alone),
                    "longest_alone_over_median": max(alone) / median(alone),
                    # Of the steps while saving, those beyond twice the median alone.
                    "share_over_twice": sum(ms > 2 * median(alone) for ms in saving)
                    / len(saving),
                    "steps": len(alone),
                    "saving_steps": len(saving),
                }
            )
    return rows


def key_row(grown: Measurement) -> dict[str, Any]:
    """What a key takes in memory, and what was forecast."""
    facts = grown.facts["tfctr"]
    keys = facts["keys"]
    return {
        "keys": keys,
        "bytes_per_key": facts["table_bytes"] / keys,
        "resident_bytes_per_key": facts["bytes_at_rest"] / keys,
        "forecast_bytes_per_key": facts["forecast_bytes"] / keys,
        "forecast_at_100m": facts["forecast_bytes_at_100m"] / 100_000_000,
    }
