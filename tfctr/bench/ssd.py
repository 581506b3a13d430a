"""`bench ssd`: rows on disk: how fast they are read, and what they cost a step.

Three things are measured. Reads of different rows in random order with the files in the
page cache, beside RocksDB. The same past the page cache, beside random reads of pages
of the very same files. And the training step of a DeepFM whose memory holds a tenth of
its rows, beside the step with all of them in memory.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from tfctr.bench import report, systems
from tfctr.bench.disk import row_bytes, scratch
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.session import Request, Session, common_facts
from tfctr.bench.summary import median, ratio, ratio_interval
from tfctr.bench.workers.options import SPARSE, WHOLE, Options
from tfctr.bench.workload import W4, Workload

OPTIMIZERS = ("adagrad",)
# Beside `SPARSE` and `WHOLE`, the kinds of cases; see the workers.
READ, DEVICE, LOOKAHEAD = "read", "device", "lookahead"
READS = Workload(num_fields=1, rows_per_field=4_000_000, batch_size=100_000)
# Few enough that chance seldom puts two rows of a batch on one page.
COLD_BATCH_SIZE = 10_000
# Memory over SSD, of the bytes of all rows: of tables that are trained, and of those
# that are read, where nearly all rows are to be on disk.
RAM_SHARE, READ_RAM_SHARE = 0.1, 0.01
SECONDS = 230.0
# What the training steps need of it.
STEP_SECONDS = 150.0
READ_TURNS = Turns(rounds=5, steps=8, untimed=2, fewer_steps={"rocksdb": 3})
STEP_TURNS = Turns(rounds=4, steps=12, untimed=4, fewer_steps={"tfctr_direct": 4})

# By (system, kind).
Samples = dict[tuple[str, str], list[float]]


def run(
    reads: Workload = READS,
    steps: Workload = W4,
    read_turns: Turns = READ_TURNS,
    step_turns: Turns = STEP_TURNS,
    directory: str | None = None,
    seconds: float = SECONDS,
    wait_seconds: float = 20.0,
) -> dict[str, Any]:
    """Measures reads from disk, and training with a tenth of the rows in memory.

    Args:
        reads: Of one field: the rows that are read, and how many at once.
        steps: The workload of the training steps. None of their batches comes twice.
        read_turns: How often and how long each kind of read is measured.
        step_turns: The same for the training steps.
        directory: Where to keep the files. `None` means the current directory.
        seconds: Float. When to be done.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `warm_read_rows_per_second`, `cold_read_rows_per_second`,
        `rocksdb_read_rows_per_second` (`None` if it is absent),
        `device_reads_per_second`, `ratios` with their bootstrap `intervals`, the
        `device_bound` on the last of them, `rows` with the median milliseconds of each
        kind and what it read, `machine`, `versions` and `absent`.

    Raises:
        ValueError: If the disk has too little room, or cannot be read past the page
            cache.
    """
    session = Session(seconds, wait_seconds)
    with scratch(directory, max(_read_bytes(reads), _step_bytes(steps))) as place:
        with scratch(str(place), 0) as files:
            requests = _read_requests(reads, files)
            read = session.measure(requests, read_turns, reserve=STEP_SECONDS)
        per_second = rates(read, requests)
        requests = _step_requests(steps, step_turns, place)
        trained = session.measure(requests, step_turns)
    times = by_kind(trained)
    pairs = {**read_pairs(per_second), **step_pairs(times)}
    rocksdb = per_second.get(("rocksdb", READ))
    device = median(per_second["tfctr_direct", DEVICE])
    rows = [*rows_of(read), *rows_of(trained)]
    (missed,) = (
        row["rows_read"]
        for row in rows
        if (row["system"], row["kind"]) == ("tfctr_direct", LOOKAHEAD)
    )
    return {
        **common_facts("ssd", requests[0][1], step_turns),
        "workloads": {
            "reads": dataclasses.asdict(reads),
            "W4": dataclasses.asdict(steps),
        },
        "turns": {
            "reads": dataclasses.asdict(read_turns),
            "steps": dataclasses.asdict(step_turns),
        },
        "warm_read_rows_per_second": median(per_second["tfctr", READ]),
        "cold_read_rows_per_second": median(per_second["tfctr_direct", READ]),
        "rocksdb_read_rows_per_second": None if rocksdb is None else median(rocksdb),
        "device_reads_per_second": device,
        "ratios": {name: ratio(*pair) for name, pair in pairs.items()},
        "intervals": {name: ratio_interval(*pair) for name, pair in pairs.items()},
        "device_bound": missed / device * 1e3 / median(times["tfctr", WHOLE]),
        "rows": rows,
        "facts": {"reads": read.facts, "steps": trained.facts},
        **session.record(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = report.columns(
        ["system", "what", "median ms", "rows read", "rows/read call", "MB of disk"],
        [
            [
                row["system"],
                row["kind"],
                f"{row['ms']:.1f}",
                _count(row, "rows_read", ",.0f"),
                _count(row, "rows_per_read_call", ".2f"),
                _count(row, "disk_mb", ".1f"),
            ]
            for row in result["rows"]
        ],
    )
    speeds = [
        f"{name.replace('_', ' ').replace(' per second', '')}: {result[name]:,.0f} /s"
        for name in (
            "warm_read_rows_per_second",
            "cold_read_rows_per_second",
            "rocksdb_read_rows_per_second",
            "device_reads_per_second",
        )
        if result[name] is not None
    ]
    bound = (
        f"Without page cache, the device alone makes it {result['device_bound']:.2f} "
        "times the step in memory, if every row is a read."
    )
    ratios = report.ratio_lines(result["ratios"], result["intervals"])
    return report.page(result, lines, speeds, [*ratios, bound])


def by_kind(measured: Measurement) -> Samples:
    """The samples under (system, kind), where there is one workload and optimizer."""
    return {
        (system, case.split("/")[0]): times
        for (system, case), times in measured.samples.items()
    }


def rates(measured: Measurement, requests: Sequence[Request]) -> Samples:
    """Rows, or pages, a second, where a step is a batch of them."""
    sizes = {
        system.name: case.workload.batch_size
        for system, options in requests
        for case in options.cases()
    }
    return {
        (system, kind): [sizes[system] / (ms / 1e3) for ms in times]
        for (system, kind), times in by_kind(measured).items()
    }


def read_pairs(per_second: Samples) -> dict[str, tuple[list[float], list[float]]]:
    """The rates that are compared, under the names of their ratios."""
    pairs = {
        "cold_read_over_device": (
            per_second["tfctr_direct", READ],
            per_second["tfctr_direct", DEVICE],
        )
    }
    if ("rocksdb", READ) in per_second:
        warm, rocksdb = per_second["tfctr", READ], per_second["rocksdb", READ]
        pairs["warm_read_over_rocksdb"] = (warm, rocksdb)
    return pairs


def step_pairs(times: Samples) -> dict[str, tuple[list[float], list[float]]]:
    """The times of steps that are compared, under the names of their ratios."""
    whole, name = times["tfctr", WHOLE], "ram_10_percent_over_all_ram"
    return {
        name: (times["tfctr_ssd", LOOKAHEAD], whole),
        f"{name}_without_lookahead": (times["tfctr_ssd", WHOLE], whole),
        f"{name}_bare_store": (times["tfctr_ssd", SPARSE], times["tfctr", SPARSE]),
        f"{name}_without_page_cache": (times["tfctr_direct", LOOKAHEAD], whole),
    }


def rows_of(measured: Measurement) -> list[dict[str, Any]]:
    """A line for each case: its median time, and what a step of it read."""
    rows = []
    for (system, case), times in measured.samples.items():
        kind = case.split("/")[0]
        row: dict[str, Any] = {"system": system, "kind": kind}
        row.update(ms=median(times), steps=len(times))
        counts = measured.facts.get(system, {}).get("counts", {}).get(case)
        if counts is not None:
            row.update(
                rows_read=counts["rows_read"],
                read_calls=counts["read_calls"],
                disk_mb=counts["disk_bytes"] / 1e6,
            )
            # The page cache is read without a call.
            if system == "tfctr_direct" and counts["read_calls"]:
                row["rows_per_read_call"] = counts["rows_read"] / counts["read_calls"]
        rows.append(row)
    return rows


def _read_requests(reads: Workload, place: pathlib.Path) -> list[Request]:
    few = min(reads.batch_size, COLD_BATCH_SIZE)
    cold = dataclasses.replace(reads, batch_size=few)
    ram = int(READ_RAM_SHARE * reads.num_rows * row_bytes(reads.dim))
    requests = []
    for name, workload, kinds, extra in (
        ("tfctr", reads, (READ,), {"ram": ram}),
        ("tfctr_direct", cold, (READ, DEVICE), {"ram": ram, "direct_reads": True}),
        ("rocksdb", reads, (READ,), {}),
    ):
        own = place / name
        own.mkdir()
        storage = {"ssd": str(own), **extra}
        options = Options({"reads": workload}, OPTIMIZERS, kinds, storage=storage)
        system = (
            systems.rocksdb()
            if name == "rocksdb"
            else systems.tfctr("read_tfctr", name)
        )
        requests.append((system, options))
    return requests


def _step_requests(
    workload: Workload, turns: Turns, place: pathlib.Path
) -> list[Request]:
    ram = int(RAM_SHARE * workload.num_rows * _model_row_bytes(workload))
    ssd = {"ram": ram, "ssd": str(place)}
    requests = []
    for name, kinds, storage in (
        ("tfctr", (SPARSE, WHOLE), {}),
        ("tfctr_ssd", (SPARSE, WHOLE, LOOKAHEAD), ssd),
        ("tfctr_direct", (LOOKAHEAD,), {**ssd, "direct_reads": True}),
    ):
        steps = turns.rounds * (turns.untimed + turns.steps_of(name))
        options = Options(
            {"W4": workload}, OPTIMIZERS, kinds, steps=steps, storage=storage
        )
        requests.append((systems.tfctr("train_tfctr", name), options))
    return requests


def _model_row_bytes(workload: Workload) -> int:
    """A DeepFM has a row with a vector and one with a weight."""
    return row_bytes(workload.dim) + row_bytes(1)


def _read_bytes(workload: Workload) -> int:
    """Two tables, whose files may be half stale, and RocksDB's files."""
    return 5 * workload.num_rows * row_bytes(workload.dim)


def _step_bytes(workload: Workload) -> int:
    """Two models, whose files may be half stale."""
    return 4 * workload.num_rows * _model_row_bytes(workload)


def _count(row: dict[str, Any], name: str, form: str) -> str:
    return format(row[name], form) if row.get(name) else ""
