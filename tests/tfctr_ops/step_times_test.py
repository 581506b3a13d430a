"""The times of steps: they pass while a store works, and within the time it takes."""

import time

import numpy as np
import tensorflow as tf

from tfctr_ops import (
    EmbeddingStore,
    RowInitializer,
    SparseOptimizer,
    StoreConfig,
    step_times,
)


def test_lookups_and_updates_take_time_and_nothing_else_does():
    store = EmbeddingStore(
        StoreConfig(
            "ads",
            8,
            SparseOptimizer("sgd"),
            RowInitializer("constant"),
            feature_seeds=(1,),
            default_row=(0.0,) * 8,
        )
    )
    ids, feature = tf.constant(np.arange(20_000)), tf.constant([0])
    start, times = time.perf_counter(), [step_times()]
    _, ticket = store.lookup(ids, feature)
    times.append(step_times())
    store.update(ticket, tf.ones((20_000, 8)), 0.1)
    times.append(step_times())
    store.read(ids, feature)
    store.stats()
    times.append(step_times())
    took = time.perf_counter() - start
    lookups, updates = zip(*times, strict=True)
    assert lookups[0] < lookups[1] == lookups[2] == lookups[3]
    assert updates[0] == updates[1] < updates[2] == updates[3]
    assert lookups[3] - lookups[0] + updates[3] - updates[0] < took
