"""Inserts new keys into TFRA tables: the weights, and the slot in a table of its own.

TFRA's optimizer wrapper keeps each slot in a second table, so one new key is two
upserts. The tables start at TFRA's default size, and grow.
"""

from typing import Any

import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding as de

from tfctr.bench.workers import memory
from tfctr.bench.workers.loop import Cases
from tfctr.bench.workers.new_keys import new_keys
from tfctr.bench.workers.options import Options
from tfctr.bench.workers.tensorflow_setup import limit_threads
from tfctr.bench.workers.tfra import versions

WARM_UP = 3


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    (case,) = options.cases()
    batch_size, dim = case.workload.batch_size, case.workload.dim
    tables = [
        de.get_variable(name, dim=dim, devices=["/CPU:0"], initializer=0.0)
        for name in ("weights", "accumulator")
    ]
    keys = new_keys((options.steps + WARM_UP) * batch_size).reshape(-1, batch_size)
    rows = tf.random.normal((batch_size, dim))

    @tf.function(autograph=False)
    def insert(batch: tf.Tensor) -> None:
        for table in tables:
            table.upsert(batch, rows)

    insert.get_concrete_function(tf.constant(keys[0]))
    before = memory.resident_bytes()
    done = []

    def step(i: int) -> None:
        insert(tf.constant(keys[i]))
        done.append(i)

    def facts() -> dict[str, Any]:
        return {
            "keys": len(done) * batch_size,
            "bytes_at_rest": memory.resident_bytes() - before,
            "bytes_at_peak": memory.peak_resident_bytes() - before,
        }

    return Cases(
        steps={case.name: step}, versions=versions(), warm_up=WARM_UP, facts=facts
    )
