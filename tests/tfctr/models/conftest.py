"""One feature of each kind, and examples of them."""

import numpy as np
import pytest
import tensorflow as tf

from tfctr.feature import Feature

# Not sorted, so that a model which relies on an order of its own would show.
FEATURES = [
    Feature("user", "int64"),
    Feature("ids", "int64", width=2),
    Feature("tags", "string", is_bag=True),
    Feature("dense", "float32", width=3),
    Feature("age", "float32"),
]


@pytest.fixture
def features():
    return list(FEATURES)


@pytest.fixture
def examples():
    """Makes inputs, with an empty bag among them, and labels that follow from them."""

    def make(count, first=0):
        rng = np.random.default_rng(first)
        tags = [list("abcd"[: i % 4]) for i in range(count)]
        inputs = {
            "user": tf.constant(rng.integers(0, 5, count) + first),
            "ids": tf.constant(rng.integers(-4, 4, (count, 2)) * 2**60),
            "tags": tf.ragged.constant(tags, dtype=tf.string, ragged_rank=1),
            "dense": tf.constant(rng.random((count, 3), np.float32)),
            "age": tf.constant(rng.random(count, np.float32)),
        }
        clicks = inputs["ids"].numpy()[:, 0] + rng.normal(size=count) * 2**60 > 0
        return inputs, tf.constant(clicks.astype(np.float32))

    return make
