"""Snapshots of a tfctr table, and training steps while one is written.

Each step is an experiment, of which only a part is timed: what it found is told as a
fact. The kinds of cases: `"save <percent>"` trains so many of all rows, then times the
snapshot; `"restore"` reads the last one back; `"sparse"` and `"whole"` time training
steps, first with nothing beside them, then while all rows are written to a snapshot.
"""

import itertools
import os
import pathlib
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig, TieredStorage
from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import SPARSE, Options
from tfctr.bench.workers.tensorflow_setup import limit_threads
from tfctr.bench.workers.tfctr_layer import (
    LEARNING_RATES,
    ROWS_AT_ONCE,
    fill,
    make_train,
    sparse_step,
    whole_step,
)
from tfctr.bench.workload import Workload
from tfctr_ops import SparseOptimizer

# Steps that find their rows again.
UNTIMED = 8
WRITTEN_AT_ONCE = 1 << 20


class Snapshots:
    """Snapshots of one layer, in one directory. Only the newest two are kept.

    Args:
        layer: `DynamicEmbedding`, built.
        directory: Where to write.
    """

    def __init__(self, layer: DynamicEmbedding, directory: pathlib.Path) -> None:
        self._layer = layer
        self._directory = directory
        self._numbers = itertools.count()
        self._paths: list[pathlib.Path] = []

    def begin(self) -> None:
        path = self._directory / f"snapshot-{next(self._numbers)}"
        self._layer.begin_snapshot(path, self._directory)
        self._paths.append(path)

    def finish(self) -> dict[str, int]:
        return self._layer.finish_snapshot()

    def restore(self) -> None:
        self._layer.restore_snapshot(self._paths[-1])

    def remove_old(self) -> None:
        while len(self._paths) > 1:
            shutil.rmtree(self._paths.pop(0))


def write_seconds(directory: pathlib.Path, size: int) -> float:
    """How long the disk takes for so many bytes in one file, and nothing else."""
    block = np.random.default_rng(0).bytes(min(size, WRITTEN_AT_ONCE))
    path = directory / "written"
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for written in range(0, size, WRITTEN_AT_ONCE):
            file.write(block[: size - written])
        os.fdatasync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


class Experiments:
    """What is measured on one layer; each returns what it found.

    Args:
        layer: `DynamicEmbedding` that holds every id of the workload.
        workload: Its ids.
        directory: Where snapshots go.
    """

    def __init__(
        self, layer: DynamicEmbedding, workload: Workload, directory: pathlib.Path
    ) -> None:
        self._layer = layer
        self._workload = workload
        self._train = make_train(layer)
        self._directory = directory
        self._snapshots = Snapshots(layer, directory)
        self._rng = np.random.default_rng(0)

    def save(self, percent: int) -> dict[str, Any]:
        """Writes a snapshot after so many of the rows were trained."""
        self._touch(percent)
        start = time.perf_counter()
        self._snapshots.begin()
        counts = self._snapshots.finish()
        seconds = time.perf_counter() - start
        new_bytes = counts["rows_written"] * self._layer_row_bytes()
        return {
            "seconds": seconds,
            "device_seconds": write_seconds(self._directory, new_bytes),
            **counts,
        }

    def restore(self) -> dict[str, Any]:
        """Reads the newest snapshot back."""
        start = time.perf_counter()
        self._snapshots.restore()
        return {"seconds": time.perf_counter() - start, "rows": self._layer.size()}

    def steps(self, step: Step) -> dict[str, Any]:
        """Trains with a snapshot of all rows beside it, and as many steps without."""
        numbers = itertools.count()

        def run() -> float:
            start = time.perf_counter()
            step(next(numbers))
            return (time.perf_counter() - start) * 1e3

        self._touch(100)
        for _ in range(UNTIMED):
            run()
        start = time.perf_counter()
        self._snapshots.begin()
        begun = (time.perf_counter() - start) * 1e3
        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(self._snapshots.finish)
            beside = [run()]
            while not writer.done():
                beside.append(run())
            writer.result()
        seconds = time.perf_counter() - start
        # To begin a snapshot delays the step after it.
        beside[0] += begun
        return {
            # The longest of more steps is longer, with or without a snapshot.
            "alone_ms": [run() for _ in beside],
            "saving_ms": beside,
            "begin_ms": begun,
            "seconds": seconds,
        }

    def _layer_row_bytes(self) -> int:
        (stats,) = self._layer.stats().values()
        return int(stats["row_bytes"])

    def _touch(self, percent: int) -> None:
        """Trains that many random rows of every field once."""
        self._snapshots.remove_old()
        rows, fields = self._workload.rows_per_field, self._workload.num_fields
        chosen = self._rng.permutation(rows)[: max(rows * percent // 100, 1)]
        ids = chosen[:, None].repeat(fields, axis=1)
        examples = max(ROWS_AT_ONCE // fields, 1)
        for part in np.split(ids, range(examples, len(ids), examples)):
            gradient = tf.fill((*part.shape, self._workload.dim), 0.01)
            self._train(tf.constant(part), gradient)


def open_cases(options: Options) -> Cases:
    # While one op writes a snapshot, others train.
    limit_threads(options.threads, ops_at_once=2)
    (workload,), (optimizer,) = options.workloads.values(), options.optimizers
    rule = SparseOptimizer(optimizer, learning_rate=LEARNING_RATES[optimizer])
    # Without a limit of memory, the directory is for the snapshots alone.
    storage = options.storage if "ram" in options.storage else {}
    layer = DynamicEmbedding(
        TableConfig("table", workload.dim, rule), storage=TieredStorage(**storage)
    )
    fill(layer, workload)
    directory = pathlib.Path(options.storage["ssd"])
    experiments = Experiments(layer, workload, directory)
    found: dict[str, list[dict[str, Any]]] = {}

    def experiment(kind: str) -> Callable[[], dict[str, Any]]:
        if kind.startswith("save "):
            percent = int(kind.removeprefix("save "))
            return lambda: experiments.save(percent)
        if kind == "restore":
            return experiments.restore
        step = (
            sparse_step(layer, workload)
            if kind == SPARSE
            else whole_step(layer, workload, optimizer)
        )
        return lambda: experiments.steps(step)

    def recorded(kind: str) -> Step:
        run = experiment(kind)
        return lambda i: found.setdefault(kind, []).append(run())

    return Cases(
        steps={case.name: recorded(case.kind) for case in options.cases()},
        versions={"tensorflow": tf.__version__, "keras": keras.__version__},
        warm_up=0,
        facts=lambda: {"found": found, "tables": layer.stats()},
    )
