"""Reads rows from a tfctr table that has nearly all of them on disk.

The kinds of cases: `"read"`, a batch of different keys in random order; `"device"`, as
many reads of random pages of the table's own files, past the page cache.
"""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers import Table, TableConfig, TieredStorage
from tfctr.bench.workers.device import Device
from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.new_keys import new_keys, shuffled_batches
from tfctr.bench.workers.options import Options
from tfctr.bench.workers.reading import ReadCounter
from tfctr.bench.workers.tensorflow_setup import limit_threads
from tfctr.bench.workload import Workload
from tfctr_ops import SparseOptimizer

WARM_UP = 2
ROWS_AT_ONCE = 100_000


def fill(table: Table, workload: Workload) -> None:
    feature = tf.constant([0])
    keys = new_keys(workload.num_rows)
    rows = tf.random.normal((ROWS_AT_ONCE, workload.dim))
    for start in range(0, keys.size, ROWS_AT_ONCE):
        ids = tf.constant(keys[start : start + ROWS_AT_ONCE])
        table.write(ids, feature, rows[: len(ids)])


def read_step(table: Table, workload: Workload) -> Step:
    feature = tf.constant([0])
    batches = shuffled_batches(workload.num_rows, workload.batch_size)
    ids = [tf.constant(batch) for batch in batches]
    return lambda i: table.read(ids[i % len(ids)], feature)


def device_step(directory: str, reads: int) -> Step:
    device = Device(directory)
    rng = np.random.default_rng(0)
    pages = [rng.integers(device.num_pages, size=reads).tolist() for _ in range(64)]
    return lambda i: device.read(pages[i % len(pages)])


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    (workload,) = options.workloads.values()
    optimizer = SparseOptimizer(options.optimizers[0])
    config = TableConfig("reads", workload.dim, optimizer)
    table = TieredStorage(**options.storage).open(config, feature_seeds=(0,))
    fill(table, workload)
    # The disk still writes what it was given; that is no part of reading.
    os.sync()
    counter = ReadCounter(lambda: table.stats()["rows_read"], WARM_UP)
    steps = {}
    for case in options.cases():
        step = (
            read_step(table, workload)
            if case.kind == "read"
            else device_step(options.storage["ssd"], workload.batch_size)
        )
        steps[case.name] = counter.counted(case.name, step)

    def facts() -> dict[str, Any]:
        return {"counts": counter.facts(), "table": table.stats()}

    return Cases(
        steps=steps,
        versions={"tensorflow": tf.__version__, "keras": keras.__version__},
        warm_up=WARM_UP,
        facts=facts,
    )
