"""Trains a table that is much larger than memory, and checks it against NumPy.

    python benchmarks/large_table.py --gigabytes 50 --ssd /mnt/ssd --json large.json

Every batch has ids that were never seen, and ids of a working set: the number of an id
follows a power law, so a few are in every batch, and many come back after they have
long left memory. All the while a model in plain NumPy trains a sample of the ids, and
at the end the rows of these must be the same to the bit.

Prints, every some steps, the rows of the table, its bytes on disk, steps per second,
and the memory that the process has taken since the table was empty, beside its bound:
the budget and the index, and a fifth more. Pages of the files that the page cache holds
are not the process' to keep, and are not counted; `resident_bytes` in the JSON counts
them.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig, TieredStorage
from tfctr.bench.workers.memory import private_bytes, resident_bytes
from tfctr.bench.workers.tfctr_layer import make_train
from tfctr_ops import SparseOptimizer

LEARNING_RATE, INITIAL_ACCUMULATOR, EPSILON = 0.01, 0.1, 1e-7
# Disk over the bytes of the rows: pages are not quite full, and rows that came up and
# were trained leave a stale copy, until half of all copies are stale.
DISK_FACTOR = 2.2
BOUND_FACTOR = 1.2
# The ids used most are always in the sample.
HOTTEST = 1000
# Odd, so that it permutes the 64-bit integers.
SPREAD = np.uint64(0x9E3779B97F4A7C15)

ROWS_AT_ONCE = 100_000
WARM_UP = 8
SHOWN = 10
HEADER = (
    f"{'step':>9}  {'rows':>13}  {'disk GB':>8}  {'steps/s':>8}  {'memory GB':>9}  "
    f"{'bound GB':>8}"
)

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def ids_of(numbers: Ids) -> Ids:
    """The id of each number: spread over all of int64."""
    return (numbers.view(np.uint64) * SPREAD).view(np.int64)


def gradient_of(ids: Ids, dim: int) -> Floats:
    """The gradient of each id, `(n, dim)`, the same in every step.

    Multiples of 1/512 below a half, so that the sum over a batch is exact in float32
    whatever its order.
    """
    words = [
        ids.view(np.uint64) * np.uint64(2 * word + 3) ^ (SPREAD >> np.uint64(word % 32))
        for word in range((dim + 3) // 4)
    ]
    # The four bytes at the top of each word, which depend on all bits below.
    bytes_ = np.stack(words, axis=1).view(np.uint8).reshape(len(ids), -1, 8)[:, :, 4:]
    columns = bytes_.reshape(len(ids), -1)[:, :dim].astype(np.float32)
    return (columns - np.float32(127.5)) / np.float32(256)


class Batches:
    """Numbers of ids, batch by batch.

    Args:
        batch_size: Integer.
        fresh: Integer. How many of them are ids that were never seen.
        seed: Integer.
    """

    def __init__(self, batch_size: int, fresh: int, seed: int) -> None:
        self.seen = 0
        self._batch_size = batch_size
        self._fresh = fresh
        self._rng = np.random.default_rng(seed)

    def next(self) -> Ids:
        new = np.arange(self.seen, self.seen + self._fresh)
        self.seen += self._fresh
        # A power law of exponent 1: half of the draws are among the first √n numbers.
        draws = self._rng.random(self._batch_size - self._fresh)
        old = np.exp(draws * np.log(self.seen)).astype(np.int64) - 1
        return np.concatenate([new, old])


class Sample:
    """The rows of some ids as Adagrad makes them, in NumPy.

    Args:
        numbers: Numbers of the ids, ascending.
        dim: Integer. Width of a row.
    """

    def __init__(self, numbers: Ids, dim: int) -> None:
        self.numbers = numbers
        self.ids = ids_of(numbers)
        self.weights = np.zeros((len(numbers), dim), np.float32)
        self.updates = np.zeros(len(numbers), np.int64)
        self._gradient = gradient_of(self.ids, dim)
        self._accumulator = np.full_like(self.weights, INITIAL_ACCUMULATOR)

    def train(self, batch: Ids) -> None:
        """Moves the rows of the sample that are in a batch of numbers."""
        places = np.searchsorted(self.numbers, batch)
        places[places == len(self.numbers)] = 0
        places = places[self.numbers[places] == batch]
        rows, counts = np.unique(places, return_counts=True)
        gradient = counts[:, None].astype(np.float32) * self._gradient[rows]
        accumulator = self._accumulator[rows] + gradient * gradient
        self._accumulator[rows] = accumulator
        rate, epsilon = np.float32(LEARNING_RATE), np.float32(EPSILON)
        self.weights[rows] -= rate * gradient / np.sqrt(accumulator + epsilon)
        self.updates[rows] += 1


class Trainer:
    """Trains a table and its sample on the same batches.

    Args:
        layer: `DynamicEmbedding` without rows.
        sampled: Numbers of the ids to follow, ascending.
        options: Of the command line.
    """

    def __init__(
        self, layer: DynamicEmbedding, sampled: Ids, options: argparse.Namespace
    ) -> None:
        self.sample = Sample(sampled, options.dim)
        self._batches = Batches(options.batch_size, fresh_of(options), options.seed)
        self._train = make_train(layer)

    @property
    def seen(self) -> int:
        """How many ids have been trained."""
        return self._batches.seen

    def step(self) -> None:
        numbers = self._batches.next()
        ids = ids_of(numbers)
        gradient = gradient_of(ids, self.sample.weights.shape[1])
        self._train(tf.constant(ids[:, None]), tf.constant(gradient[:, None]))
        self.sample.train(numbers)


def fresh_of(options: argparse.Namespace) -> int:
    """How many ids of a batch are new."""
    return max(int(options.batch_size * options.fresh), 1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Trains, checks, and returns what is worth writing down."""
    rule = SparseOptimizer(
        "adagrad",
        learning_rate=LEARNING_RATE,
        initial_accumulator_value=INITIAL_ACCUMULATOR,
        epsilon=EPSILON,
    )
    config = TableConfig("large", options.dim, rule, initializer="zeros")
    storage = TieredStorage(ram=options.ram, ssd=options.ssd)
    row_bytes = storage.forecast(config, num_keys=1).row_bytes
    fresh = fresh_of(options)
    steps = max(int(options.gigabytes * 1e9) // row_bytes // fresh, 1)

    numbers = sampled_numbers(steps * fresh, options)
    # What TensorFlow and NumPy keep once they have worked is no row's memory: a table
    # that is gone again makes them take it first.
    trainer = Trainer(DynamicEmbedding(config), numbers, options)
    for _ in range(WARM_UP):
        trainer.step()
    layer = DynamicEmbedding(config, storage=storage)
    trainer = Trainer(layer, numbers, options)
    before = private_bytes()

    print(HEADER, flush=True)
    reports: list[dict[str, Any]] = []
    start, reported = time.perf_counter(), 0
    for step in range(1, steps + 1):
        trainer.step()
        if step % options.report == 0 or step == steps:
            seconds = time.perf_counter() - start
            stats = layer.stats()["large"]
            report = {
                "step": step,
                "rows": stats["known_rows"],
                "disk_bytes": stats["disk_bytes"],
                "rows_read": stats["rows_read"],
                "steps_per_second": (step - reported) / seconds,
                "memory_bytes": private_bytes() - before,
                "resident_bytes": resident_bytes(),
                "counted_bytes": stats["memory_bytes"],
                "bound_bytes": bound_bytes(storage, config, trainer.seen),
            }
            print(line_of(report), flush=True)
            reports.append(report)
            start, reported = time.perf_counter(), step

    wrong = wrong_ids(layer, trainer.sample)
    speeds = [report["steps_per_second"] for report in reports]
    return {
        "command": "large_table",
        "arguments": vars(options),
        "row_bytes": row_bytes,
        "rows": layer.size(),
        "rows_expected": trainer.seen,
        "table_bytes": trainer.seen * row_bytes,
        "steps": steps,
        "steps_per_second": {
            "first": speeds[0],
            "median": float(np.median(speeds)),
            "slowest": min(speeds),
            "last": speeds[-1],
        },
        "memory_over_bound": max(
            report["memory_bytes"] / report["bound_bytes"] for report in reports
        ),
        "rows_checked": len(trainer.sample.ids),
        "rows_wrong": len(wrong),
        "ids_wrong": wrong[:SHOWN],
        "most_updates_checked": int(trainer.sample.updates.max()),
        "reports": reports,
    }


def sampled_numbers(total: int, options: argparse.Namespace) -> Ids:
    """Numbers of the ids to check, ascending: the hottest, and others at random."""
    rng = np.random.default_rng(options.seed + 1)
    hottest = np.arange(min(HOTTEST, total))
    return np.union1d(hottest, rng.integers(total, size=options.sample))


def bound_bytes(storage: TieredStorage, config: TableConfig, num_keys: int) -> int:
    """Bytes of memory that a table of that many keys may take."""
    return int(BOUND_FACTOR * storage.forecast(config, num_keys).ram_bytes)


def wrong_ids(layer: DynamicEmbedding, sample: Sample) -> list[int]:
    """The ids of the sample whose rows are not those of NumPy, to the bit."""
    wrong = []
    for start in range(0, len(sample.ids), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        rows = layer.read_rows(sample.ids[part]).numpy()
        differ = (rows != sample.weights[part]).any(axis=1)
        wrong += sample.ids[part][differ].tolist()
    return wrong


def line_of(report: dict[str, Any]) -> str:
    return (
        f"{report['step']:>9,}  {report['rows']:>13,}  "
        f"{report['disk_bytes'] / 1e9:>8.2f}  {report['steps_per_second']:>8.2f}  "
        f"{report['memory_bytes'] / 1e9:>9.3f}  {report['bound_bytes'] / 1e9:>8.3f}"
    )


def summary_of(result: dict[str, Any]) -> str:
    """The end of what is printed: speeds, memory, and whether the rows are right."""
    speed = result["steps_per_second"]
    return (
        f"{result['table_bytes'] / 1e9:.1f} GB of rows. Steps per second: first "
        f"{speed['first']:.2f}, median {speed['median']:.2f}, slowest "
        f"{speed['slowest']:.2f}, last {speed['last']:.2f}. Memory was at most "
        f"{result['memory_over_bound']:.2f} of its bound. {result['rows_checked']:,} "
        f"rows checked, updated up to {result['most_updates_checked']:,} times: "
        f"{result['rows_wrong']} wrong."
    )


def is_right(result: dict[str, Any]) -> bool:
    """Whether the table is as it must be: its rows, their number, their memory."""
    return (
        result["rows_wrong"] == 0
        and result["rows"] == result["rows_expected"]
        and result["memory_over_bound"] <= 1.0
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a table much larger than memory, and checks its rows.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--ssd", required=True, metavar="DIR", help="on a fast disk")
    parser.add_argument("--gigabytes", type=float, default=20.0, help="of rows, at end")
    parser.add_argument("--ram", default="1GB", help="of rows in memory")
    parser.add_argument("--dim", type=int, default=16, help="width of a row")
    parser.add_argument("--batch-size", type=int, default=65536, help="ids of a step")
    parser.add_argument(
        "--fresh", type=float, default=0.5, help="share of them never seen before"
    )
    parser.add_argument(
        "--sample", type=int, default=100_000, help="random ids to check at the end"
    )
    parser.add_argument("--report", type=int, default=100, help="steps between lines")
    parser.add_argument("--seed", type=int, default=0, help="of the ids")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser.parse_args(arguments)


def check(options: argparse.Namespace) -> None:
    """Refuses what cannot be done, before the work.

    Raises:
        ValueError: If an argument is out of range, or the disk has too little room.
    """
    for name in ("gigabytes", "dim", "batch_size", "sample", "report"):
        value = getattr(options, name)
        if not value > 0:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be above 0. Received: --{flag} {value}.")
    if not 0.0 < options.fresh <= 1.0:
        raise ValueError(
            f"--fresh must lie in (0, 1]. Received: --fresh {options.fresh}."
        )
    if options.json is not None and not pathlib.Path(options.json).parent.is_dir():
        raise ValueError(
            "--json must name a file in a directory that exists. "
            f"Received: --json {options.json}."
        )
    os.makedirs(options.ssd, exist_ok=True)
    free = shutil.disk_usage(options.ssd).free
    needed = DISK_FACTOR * options.gigabytes * 1e9
    if free < needed:
        raise ValueError(
            f"A table of {options.gigabytes} GB needs {needed / 1e9:.1f} GB of disk. "
            f"Received: --ssd {options.ssd} with {free / 1e9:.1f} GB free. Name "
            f"another disk, or at most --gigabytes {free / 1e9 / DISK_FACTOR:.1f}."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        check(options)
        result = run(options)
    except (ValueError, OSError, tf.errors.OpError) as error:
        print(f"large_table: {error}", file=sys.stderr)
        return 2
    print(summary_of(result))
    if options.json is not None:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0 if is_right(result) else 1


if __name__ == "__main__":
    sys.exit(main())
