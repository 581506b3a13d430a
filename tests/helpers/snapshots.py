"""Stores to save and restore, and all that is in them."""

import numpy as np
import tensorflow as tf

FEATURES = tf.constant([0, 1])
DIM = 3
# Bytes in memory; the rest is on disk. About 2000 rows of 56 bytes.
MIXES = {
    "ram": None,
    "ssd, a tenth in ram": 10_000,
    "ssd, nothing in ram": 0,
    "ssd, all in ram": 10_000_000,
}


def train(store, ids, seed=0):
    """One update of the ids, of both features in turn."""
    rng = np.random.default_rng(seed)
    _, ticket = store.lookup(tf.constant(ids, tf.int64), FEATURES)
    gradients = rng.normal(size=(len(ids), DIM)).astype("float32")
    store.update(ticket, gradients, 0.1)


def fill(store, steps=10):
    rng = np.random.default_rng(1)
    for step in range(steps):
        train(store, rng.integers(-1000, 1000, 500), seed=step)
    store.write(tf.constant([2**63 - 1, -(2**63)]), FEATURES, tf.ones((2, DIM)))
    return store


def contents(store):
    """All rows by key, to the bit, and the step."""
    rows = store.export_rows()
    columns = [column.numpy() for column in rows]
    found = {
        (int(feature), int(id_)): (values.tobytes(), int(last), int(count))
        for id_, feature, values, last, count in zip(*columns, strict=True)
    }
    assert len(found) == len(columns[0])
    return found, store.stats()["step"]


def restored(store, directory, features=(0, 1), seeds=()):
    store.restore(str(directory), features, seeds)
    return store
