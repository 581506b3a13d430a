"""Tables that are looked up in one call, as those that ranks share."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage

IDS = tf.range(5, dtype=tf.int64)


class JointStorage(TieredStorage):
    """Whose tables of one width are looked up in one call."""

    spans_ranks = True

    def lookup(self, lookups):
        self.calls = [*getattr(self, "calls", []), len(lookups)]
        return super().lookup(lookups)


def make_layer(storage):
    features = {
        name: FeatureConfig(TableConfig(name, dim, keras.optimizers.Adam(0.1), seed=1))
        for name, dim in {"a": 2, "b": 2, "wide": 3, "never": 2}.items()
    }
    return DynamicEmbedding(features, storage=storage)


def train(layer, names):
    with tf.GradientTape() as tape:
        outputs = layer(dict.fromkeys(layer.features, IDS), training=True)
        loss = sum(tf.reduce_sum(tf.square(outputs[name] - 1)) for name in names)
    tape.gradient(loss, layer.trainable_variables)


def state(layer):
    rows = [layer.read_rows(IDS, feature=name).numpy() for name in layer.features]
    return np.concatenate(rows, 1), [of["step"] for of in layer.stats().values()]


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function])
def test_a_table_without_a_gradient_is_left_as_it_is(wrap):
    # Adam would move it by its moments, and count a step.
    found = {}
    for kind in (TieredStorage, JointStorage):
        layer = make_layer(kind())
        layer(dict.fromkeys(layer.features, IDS))
        with_b = wrap(lambda layer=layer: train(layer, ["a", "b", "wide"]))
        without_b = wrap(lambda layer=layer: train(layer, ["a", "wide"]))
        for step in (with_b, without_b, without_b, with_b):
            step()
        found[kind] = state(layer)
    np.testing.assert_array_equal(*(rows for rows, _ in found.values()))
    assert found[JointStorage][1] == found[TieredStorage][1] == [4, 2, 4, 0]


def test_tables_of_one_width_are_looked_up_in_one_call():
    storage = JointStorage()
    train(make_layer(storage), ["a", "b", "wide", "never"])
    assert storage.calls == [3, 1]


def test_ranks_that_would_train_tables_apart_are_warned(monkeypatch):
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    message = "2 ranks were started, and each trains a table of its own: TieredStorage"
    with pytest.warns(UserWarning, match=message):
        make_layer(TieredStorage())(dict.fromkeys(["a", "b", "wide", "never"], IDS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_layer(JointStorage())(dict.fromkeys(["a", "b", "wide", "never"], IDS))
