"""`bench policy`: which rows stay in memory, beside the best that could."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.bench import machine, report
from tfctr.bench.belady import fewest_misses
from tfctr.bench.session import own_versions
from tfctr.bench.trace import Trace, movielens_trace, workload_trace
from tfctr.bench.workload import W4, Workload

POLICIES = ("clock", "lru", "lfu")
NUM_BATCHES = 200
RATINGS_OF_A_BATCH = 256
# Rows in memory, of all rows of the trace.
RAM_SHARE = 0.1
LOOKAHEAD = 8
# Batches before a scan and after it that are compared.
SCAN_WINDOW = 10

Int64s = npt.NDArray[np.int64]


def run(
    data: str | os.PathLike[str] | None = None,
    workload: Workload = W4,
    num_batches: int = NUM_BATCHES,
    ratings_of_a_batch: int = RATINGS_OF_A_BATCH,
) -> dict[str, Any]:
    """Replays traces through stores with memory for a tenth of the rows, and an SSD.

    Args:
        data: String or path. Directory of MovieLens 1M, whose ratings in order of time
            are a trace too. `None` leaves it out.
        workload: What the batches of the first trace are drawn from.
        num_batches: Integer. Batches of the first trace.
        ratings_of_a_batch: Integer. Ratings of a batch of MovieLens.

    Returns:
        A dict for JSON: `traces`, what each consists of, and `rows`, one per trace and
        policy. `hit_rate` is the mean share of a batch's different rows that were in
        memory, from 45 % of the trace to the scan; `misses_per_batch` are the
        others; `after_scan` is the hit rate of the ten batches after the scan over that
        of the ten before. `below` says how many points the hit rate is below each of
        the offline ones.
    """
    traces = [workload_trace(workload, num_batches)]
    if data is not None:
        traces.append(movielens_trace(data, ratings_of_a_batch))
    return {
        "command": "policy",
        "workload": asdict(workload),
        "ram_share": RAM_SHARE,
        "lookahead": LOOKAHEAD,
        "traces": [facts_of(trace) for trace in traces],
        "rows": [row for trace in traces for row in rows_of(trace)],
        "machine": machine.describe(),
        "versions": own_versions(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = []
    for trace in result["traces"]:
        lines += [
            f"{trace['name']}: {trace['batches']:,} batches of "
            f"{trace['rows_per_batch']:,.0f} different rows, "
            f"{trace['new_rows_per_batch']:,.0f} of them new; memory for "
            f"{trace['ram_rows']:,} of {trace['rows']:,} rows.",
            "",
            *_columns([row for row in result["rows"] if row["trace"] == trace["name"]]),
            "",
        ]
    return "\n".join([*lines, "`below`: how many points the hit rate is below it."])


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    bounds = list(rows[-1]["below"])
    header = ["policy", "hit rate", "misses/batch", "after scan"]
    return report.columns(
        [*header, *(f"below {bound}" for bound in bounds)],
        [
            [
                row["policy"],
                f"{row['hit_rate']:.2%}",
                f"{row['misses_per_batch']:,.0f}",
                f"{row['after_scan']:.3f}",
                *(f"{row['below'][b]:.2f}" if row["below"] else "" for b in bounds),
            ]
            for row in rows
        ],
    )


def facts_of(trace: Trace) -> dict[str, Any]:
    """What a trace consists of, between half the way to the scan and the scan."""
    sizes = np.array([batch.size for batch in trace.batches])
    seen = np.zeros(sum(sizes), bool)
    is_new = np.zeros(len(sizes), np.int64)
    for number, batch in enumerate(trace.batches):
        is_new[number] = np.count_nonzero(~seen[batch])
        seen[batch] = True
    return {
        "name": trace.name,
        "batches": len(trace.batches),
        "measured": [_measured(trace).start, _measured(trace).stop],
        "scan": [trace.scan_start, trace.scan_end],
        "rows": trace.num_rows,
        "ram_rows": _ram_rows(trace),
        "rows_per_batch": float(np.mean(sizes[_measured(trace)])),
        "new_rows_per_batch": float(np.mean(is_new[_measured(trace)])),
    }


def rows_of(trace: Trace) -> list[dict[str, Any]]:
    """The lines of a trace: the offline policies, then those of the store."""
    capacity = _ram_rows(trace)
    bounds = {
        "belady": fewest_misses(trace.batches, capacity),
        f"belady_{LOOKAHEAD}_lru": fewest_misses(
            trace.batches, capacity, LOOKAHEAD, "lru"
        ),
        f"belady_{LOOKAHEAD}_lfu": fewest_misses(
            trace.batches, capacity, LOOKAHEAD, "lfu"
        ),
    }
    rows = [
        {**row_of(trace, name, misses), "below": {}} for name, misses in bounds.items()
    ]
    best = {row["policy"]: row["hit_rate"] for row in rows}
    for policy in POLICIES:
        row = row_of(trace, policy, replay(trace.batches, capacity, policy))
        below = {name: 100 * (rate - row["hit_rate"]) for name, rate in best.items()}
        rows.append({**row, "below": below})
    return rows


def replay(
    batches: Sequence[npt.NDArray[np.int32]], capacity: int, policy: str
) -> Int64s:
    """Trains the rows of each batch in a store, and counts those that were missing.

    Args:
        batches: int32 `(n,)` each: different rows.
        capacity: Integer. Rows that memory takes.
        policy: String. `eviction_policy` of the store.

    Returns:
        int64 `(len(batches),)`.
    """
    # Not with the module: `--help` does not wait for TensorFlow.
    import tensorflow as tf

    from tfctr_ops import (
        EmbeddingStore,
        MemoryBudget,
        RowInitializer,
        SparseOptimizer,
        StoreConfig,
    )

    misses = np.zeros(len(batches), np.int64)
    with tempfile.TemporaryDirectory() as directory:
        config = StoreConfig(
            table="trace",
            dim=1,
            optimizer=SparseOptimizer("sgd"),
            initializer=RowInitializer("constant"),
            feature_seeds=(0,),
            default_row=(0.0,),
            eviction_policy=policy,
            ssd_directory=directory,
        )
        store = EmbeddingStore(config, MemoryBudget(capacity * config.row_bytes))
        came = 0
        for number, batch in enumerate(batches):
            ids = tf.constant(batch, tf.int64)
            _, ticket = store.lookup(ids, tf.constant([0]))
            stats = store.stats()
            # Whatever is or was in memory came there.
            before, came = came, stats["rows"] + stats["evicted_rows"]
            misses[number] = came - before
            store.update(ticket, tf.zeros((batch.size, 1)), 0.0)
            stats = store.stats()
            came = stats["rows"] + stats["evicted_rows"]
        del store, ticket
    return misses


def row_of(trace: Trace, policy: str, misses: Int64s) -> dict[str, Any]:
    """A line of a trace, from what each of its batches missed."""
    sizes = np.array([batch.size for batch in trace.batches])
    hit_rates = 1.0 - misses / sizes
    before = hit_rates[trace.scan_start - SCAN_WINDOW : trace.scan_start]
    after = hit_rates[trace.scan_end : trace.scan_end + SCAN_WINDOW]
    return {
        "trace": trace.name,
        "policy": policy,
        "hit_rate": float(np.mean(hit_rates[_measured(trace)])),
        "misses_per_batch": float(np.mean(misses[_measured(trace)])),
        "after_scan": float(np.mean(after) / np.mean(before)),
    }


def _measured(trace: Trace) -> slice:
    """When memory is full and has seen enough, up to the scan."""
    return slice(trace.scan_start // 2, trace.scan_start)


def _ram_rows(trace: Trace) -> int:
    return int(trace.num_rows * RAM_SHARE)
