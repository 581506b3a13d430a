"""Steps of a table, on keys with duplicates, and what they leave in it."""

import numpy as np
import tensorflow as tf

from tfctr_ops import SparseOptimizer

DIM, SEEDS = 3, (2**64 - 1, 22)
ADAM = SparseOptimizer("adam", 0.5)
ANY_STEP = tf.constant(-1, tf.int64)


def keys(seed=0, n=50):
    rng = np.random.default_rng(seed)
    ids = tf.constant(rng.integers(-9, 9, n) * 2**59)
    return ids, tf.constant(rng.integers(-1, len(SEEDS), n), tf.int32)


def step(table, ids, features, seed=0, rate=0.5):
    gradients = np.random.default_rng(seed).normal(size=(len(ids), DIM))
    _, ticket = table.lookup(ids, features, ANY_STEP)
    return table.update(ticket, tf.constant(gradients, tf.float32), rate)


def assert_same_rows(table, other):
    tables = []
    for one in (table, other):
        rows = [np.asarray(column) for column in one.save_rows()]
        order = np.lexsort((rows[0], rows[1]))
        tables.append([column[order] for column in rows])
    for column, expected in zip(*tables, strict=True):
        np.testing.assert_allclose(column, expected, rtol=1e-5, atol=1e-6)
