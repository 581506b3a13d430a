"""Tables that are looked up in one call, as those that ranks share."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import (
    CountAdmission,
    DynamicEmbedding,
    FeatureConfig,
    TableConfig,
    TieredStorage,
)
from tfctr_ops import SparseOptimizer

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


CLIPS = TableConfig("clips", 2, SparseOptimizer("sgd", clip_ratio=1.0), seed=1)
BAGS = [[5, 5, 7], [7, 5], [], [5, 0, 0, 5, 0]]
RAGGED = tf.ragged.constant(BAGS, dtype=tf.int64)
# Feature and ids, and the samples of each id that a row is for.
COUNTED = {
    "one id": (FeatureConfig(CLIPS), [5, 7, 5, 5], {5: 3, 7: 1}),
    "sequence": (FeatureConfig(CLIPS), [[5, 5], [7, 5], [7, 9]], {5: 2, 7: 2, 9: 1}),
    "bag": (
        FeatureConfig(CLIPS, combiner="sum", padding_id=0),
        RAGGED.to_tensor(0),
        {5: 3, 7: 2},
    ),
    "ragged": (FeatureConfig(CLIPS, combiner="mean"), RAGGED, {5: 3, 7: 2, 0: 1}),
    "sparse": (
        FeatureConfig(CLIPS, combiner="mean", padding_id=0),
        RAGGED.to_sparse(),
        {5: 3, 7: 2},
    ),
}


class NotingStorage(TieredStorage):
    """Whose lookups are kept."""

    def lookup(self, lookups):
        self.asked = lookups
        return super().lookup(lookups)


def counts_of(storage):
    """The counts that were asked with, by feature number and id."""
    [asked] = storage.asked
    ids, features = asked.ids.numpy(), asked.features.numpy()
    features = np.tile(features, len(ids) // len(features))
    counts = np.ones(len(ids)) if asked.counts is None else asked.counts.numpy()
    found = {}
    for feature, id, count in zip(features, ids, counts, strict=True):
        if feature >= 0:
            found[feature, id] = found.get((feature, id), 0) + count
    return found


@pytest.mark.parametrize("case", COUNTED)
def test_a_table_that_clips_is_told_in_how_many_samples_an_id_is(case):
    feature, ids, expected = COUNTED[case]
    storage = NotingStorage()
    ids = tf.constant(ids) if isinstance(ids, list) else ids
    DynamicEmbedding(feature, storage=storage)(ids, training=True)
    assert counts_of(storage) == {(0, id): count for id, count in expected.items()}


def test_features_of_one_namespace_share_their_samples():
    shared = FeatureConfig(CLIPS, namespace="item")
    features = {"a": shared, "b": shared, "c": FeatureConfig(CLIPS)}
    storage = NotingStorage()
    columns = {"a": [1, 2, 2], "b": [1, 1, 3], "c": [1, 1, 1]}
    columns = {name: tf.constant(ids) for name, ids in columns.items()}
    DynamicEmbedding(features, storage=storage)(columns, training=True)
    assert counts_of(storage) == {(0, 1): 2, (0, 2): 2, (0, 3): 1, (1, 1): 3}


def test_columns_with_rows_of_their_own_need_no_counts():
    storage = NotingStorage()
    layer = DynamicEmbedding(CLIPS, storage=storage)
    layer(tf.constant([[5, 5], [5, 7]]), training=True)
    assert storage.asked[0].counts is None
    assert counts_of(storage) == {(0, 5): 2, (1, 5): 1, (1, 7): 1}


def test_a_table_that_does_not_clip_counts_every_occurrence():
    adam = keras.optimizers.Adam(0.1)
    table = TableConfig("all", 2, adam, admission=CountAdmission(3))
    storage = NotingStorage()
    layer = DynamicEmbedding(FeatureConfig(table, combiner="sum"), storage=storage)
    layer(RAGGED, training=True)
    assert counts_of(storage) == {(0, 5): 5, (0, 7): 2, (0, 0): 3}
