"""The two places of CowClip: in the update of a table, and around a Keras optimizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr.optimizers import CowClip

ROWS, STEPS, BATCH, WIDTH = 20, 20, 16, 4
START = np.random.default_rng(1).normal(scale=0.1, size=(ROWS, 8)).astype("float32")
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
}
RULE = {"ratio": 0.5, "floor": 1e-3, "l2": 1e-3}


def batches(every_id):
    """Ids, some twice in a sample, and the gradients of their vectors."""
    rng = np.random.default_rng(2)
    ids = rng.zipf(1.5, (STEPS, BATCH, WIDTH)) % ROWS
    ids[:, ::3, 1] = ids[:, ::3, 0]
    if every_id:
        # Keras' Adam moves rows that are absent, too; a table does not.
        ids[:, -ROWS // WIDTH :] = np.arange(ROWS).reshape(-1, WIDTH)
    sizes = 10.0 ** rng.uniform(-2, 2, (STEPS, BATCH, WIDTH, 1))
    return ids, (rng.normal(size=(STEPS, BATCH, WIDTH, 8)) * sizes).astype("float32")


def losses(gradients, vectors):
    return tf.reduce_sum(gradients * vectors) / BATCH


def of_keras(optimizer, ids, gradients, dim, **options):
    layer = keras.layers.Embedding(ROWS, dim)
    layer.build(None)
    layer.embeddings.assign(START[:, :dim])
    clip = CowClip(optimizer, [layer], **RULE, **options)
    clip.build(layer.trainable_variables)

    @tf.function(autograph=False)
    def step(batch, labels):
        with tf.GradientTape() as tape:
            value = losses(labels, layer(batch))
        variables = layer.trainable_variables
        clip.apply(tape.gradient(value, variables), variables)

    for batch, labels in zip(ids, gradients, strict=True):
        step(tf.constant(batch), tf.constant(labels[..., :dim]))
    return layer.embeddings.numpy(), clip.clipped_share[layer.path]


def of_table(optimizer, ids, gradients, dim, **options):
    clip = CowClip(optimizer, **RULE, **options)
    layer = DynamicEmbedding(FeatureConfig(TableConfig("ads", dim, clip)))
    layer(np.array([[0]]))
    layer.write_rows(np.arange(ROWS), START[:, :dim])

    @tf.function(autograph=False)
    def step(batch, labels):
        with tf.GradientTape() as tape:
            value = losses(labels, layer(batch, training=True))
        tape.gradient(value, layer.trainable_variables)

    for batch, labels in zip(ids, gradients, strict=True):
        step(tf.constant(batch), tf.constant(labels[..., :dim]))
    return layer.read_rows(np.arange(ROWS)).numpy(), layer.stats()["ads"]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_table_clips_as_around_a_keras_optimizer(kind):
    data = batches(every_id=kind == "adam")
    expected, share = of_keras(OPTIMIZERS[kind](), *data, 8)
    found, stats = of_table(OPTIMIZERS[kind](), *data, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert 0.1 < share < 0.9
    assert stats["clipped_share"] == pytest.approx(share)


@pytest.mark.parametrize("clip_linear", [False, True])
def test_a_table_of_width_one_is_clipped_when_asked(clip_linear):
    data = batches(every_id=False)
    options = {"clip_linear": clip_linear}
    expected, share = of_keras(OPTIMIZERS["adagrad"](), *data, 1, **options)
    found, stats = of_table(OPTIMIZERS["adagrad"](), *data, 1, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert (share > 0) == clip_linear
    assert stats["clipped_share"] == pytest.approx(share)


def test_without_bounds_a_table_is_as_without_cow_clip():
    """Which shows that the two layers start and step alike."""
    ids, gradients = batches(every_id=False)
    free = {**RULE, "ratio": float("inf"), "l2": 0.0}
    clip = CowClip(OPTIMIZERS["adagrad"](), **free)
    found = []
    for optimizer in (clip, OPTIMIZERS["adagrad"]()):
        layer = DynamicEmbedding(FeatureConfig(TableConfig("ads", 8, optimizer)))
        layer(np.array([[0]]))
        layer.write_rows(np.arange(ROWS), START)
        for batch, labels in zip(ids, gradients, strict=True):
            with tf.GradientTape() as tape:
                value = losses(labels, layer(batch, training=True))
            tape.gradient(value, layer.trainable_variables)
        found.append(layer.read_rows(np.arange(ROWS)).numpy())
    np.testing.assert_array_equal(*found)
