"""The edges of CowClip's formula, the same on every path that has it."""

import importlib.util
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import TableConfig, TieredStorage
from tfctr.optimizers import CowClip

INF = math.inf
WEIGHTS = np.float32([[0.3, 0.4], [0, 0], [0.3, 0.4], [0, 0], [0.3, 0.4], [0, 0]])
GRADIENTS = np.float32([[3, 4], [3, 4], [0, 0], [0, 0], [0.03, 0.04], [3, 4]])
# The last two ids are in no sample.
COUNTS = np.array([2, 1, 1, 2, 0, 0])


def taken_off(ratio, floor, l2):
    """What SGD with a learning rate of 1 takes off each row."""
    rows = []
    for w, g, count in zip(WEIGHTS.astype(float), GRADIENTS, COUNTS, strict=True):
        if count == 0:
            rows.append(0 * w)
            continue
        length = np.linalg.norm(g)
        clip = INF
        if INF not in (ratio, floor):
            clip = count * max(ratio * np.linalg.norm(w), floor)
        rows.append((g if length <= clip else g * clip / length) + 2 * l2 * w)
    return np.array(rows)


def of_storage(storage, ratio, floor, l2):
    optimizer = CowClip(keras.optimizers.SGD(1.0), ratio=ratio, floor=floor, l2=l2)
    table = storage.open(TableConfig("ads", dim=2, optimizer=optimizer), (1,))
    ids, feature = tf.range(len(WEIGHTS), dtype=tf.int64), tf.constant([0])
    table.write(ids, feature, tf.constant(WEIGHTS))
    counts = tf.constant(COUNTS, tf.int32)
    _, ticket = table.lookup(ids, feature, tf.constant(-1, tf.int64), counts)
    table.update(ticket, tf.constant(GRADIENTS), 1.0)
    return WEIGHTS - table.read(ids, feature).numpy()


def of_store(*rule):
    return of_storage(TieredStorage(), *rule)


def of_tfra(*rule):
    if importlib.util.find_spec("tensorflow_recommenders_addons") is None:
        pytest.skip("this environment has no TFRA, which goes with the pinned stack")
    from keras_layers import TfraStorage

    return of_storage(TfraStorage(), *rule)


def of_keras(ratio, floor, l2, dense):
    """Ids without a sample have a gradient where the table is read past the layer."""
    layer = keras.layers.Embedding(len(WEIGHTS), 2)
    layer.build(None)
    layer.embeddings.assign(WEIGHTS)
    optimizer = CowClip(keras.optimizers.SGD(1.0), [layer], ratio, floor, l2)
    optimizer.build(layer.trainable_variables)
    ids = np.repeat(np.arange(len(COUNTS)), COUNTS)
    with tf.GradientTape() as tape:
        value = 0.0 * tf.reduce_sum(layer(ids))
        table = layer.embeddings.value
        rows = table if dense else tf.gather(table, np.arange(len(WEIGHTS)))
        value += tf.reduce_sum(rows * GRADIENTS)
    gradients = tape.gradient(value, layer.trainable_variables)
    assert isinstance(gradients[0], tf.IndexedSlices) == (not dense)
    optimizer.apply(gradients, layer.trainable_variables)
    return WEIGHTS - layer.embeddings.numpy()


PATHS = {
    "store": of_store,
    "tfra": of_tfra,
    "keras_dense": lambda *rule: of_keras(*rule, dense=True),
    "keras_sparse": lambda *rule: of_keras(*rule, dense=False),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "ratio, floor", [(1.0, 0.0), (0.5, 0.2), (INF, 0.0), (INF, INF), (0.0, INF)]
)
def test_counts_and_gradients_of_zero_and_infinite_bounds(path, ratio, floor):
    for l2 in (0.0, 0.1):
        expected = taken_off(ratio, floor, l2)
        found = PATHS[path](ratio, floor, l2)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
