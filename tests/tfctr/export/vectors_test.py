"""`vectors`: all that was learned, and nothing else."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr.export import vectors

DIM = 2


def table(name="ads", dim=DIM):
    return TableConfig(name, dim, keras.optimizers.SGD(1.0), initializer="ones")


def collect(layer, **options):
    """All rows by feature and id; complains if one comes twice."""
    found = {}
    for feature, ids, rows in vectors(layer, **options):
        assert ids.dtype == np.int64 and rows.dtype == np.float32
        assert rows.shape[0] == len(ids) > 0
        for id, row in zip(ids.tolist(), rows.tolist(), strict=True):
            assert (feature, id) not in found
            found[feature, id] = row
    return found


def test_trained_and_written_rows_come_and_no_others():
    layer = DynamicEmbedding(FeatureConfig(table()), name="embedding")
    layer(np.array([1, 2]), training=True)  # No gradient: looked up, not trained.
    layer(np.array([3]), training=False)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([4, 5, 4]), training=True))
    tape.gradient(loss, layer.trainable_variables)
    layer.write_rows([6], [[8.0, 9.0]])
    (name,) = {name for name, _ in collect(layer)}
    assert collect(layer) == {
        (name, 4): [-1.0, -1.0],
        (name, 5): [0.0, 0.0],
        (name, 6): [8.0, 9.0],
    }


def test_every_table_and_feature_comes_under_its_name():
    ads, films = table(), table("films", dim=3)
    layer = DynamicEmbedding(
        {
            "columns": FeatureConfig(ads, per_column=True),
            "film": FeatureConfig(films, namespace="film"),
            "liked": FeatureConfig(films, combiner="sum", namespace="film"),
        }
    )
    layer(
        {
            "columns": tf.constant([[1, 1]], tf.int64),
            "film": tf.constant([1], tf.int64),
            "liked": tf.constant([[1]], tf.int64),
        }
    )
    layer.write_rows([1], [[1, 2]], "columns/0")
    layer.write_rows([1], [[3, 4]], "columns/1")
    layer.write_rows([1], [[5, 6, 7]], "film")
    assert sorted(collect(layer).values()) == [[1, 2], [3, 4], [5, 6, 7]]
    # The names lead back to the rows.
    for (name, id), row in collect(layer).items():
        assert name.startswith(("ads/columns", "films/film"))
        np.testing.assert_array_equal(layer.read_rows([id], name), [row])


@pytest.mark.parametrize("batch_size", [1, 7, 100, 1 << 16])
def test_batches_hold_what_was_asked_for(batch_size):
    layer = DynamicEmbedding(FeatureConfig(table()))
    layer(np.array([0]))
    ids = np.random.default_rng(0).permutation(1000)[:100] - 500
    rows = np.stack([ids, -ids], axis=1).astype(np.float32)
    layer.write_rows(ids, rows)
    sizes = [len(ids) for _, ids, _ in vectors(layer, batch_size)]
    assert max(sizes) <= batch_size and sum(sizes) == 100
    found = {id: row for (_, id), row in collect(layer, batch_size=batch_size).items()}
    assert found == {id: [id, -id] for id in ids.tolist()}


def test_strings_come_as_their_fingerprints():
    layer = DynamicEmbedding(FeatureConfig(table()))
    layer(tf.constant(["Lima"]))
    layer.write_rows(tf.constant(["Lima"]), [[1.0, 2.0]])
    fingerprint = tf.fingerprint(tf.constant(["Lima"])).numpy().view(np.int64)
    assert [id for _, id in collect(layer)] == fingerprint.ravel().tolist()


def test_vectors_go_into_another_model():
    first, second = (DynamicEmbedding(FeatureConfig(table())) for _ in range(2))
    for layer in (first, second):
        layer(np.array([0]))
    first.write_rows([5, 6], [[1, 2], [3, 4]])
    for _, ids, rows in vectors(first):
        second.write_rows(ids, rows)
    np.testing.assert_array_equal(second.read_rows([6, 5]), [[3, 4], [1, 2]])


def test_an_empty_table_has_no_batches():
    layer = DynamicEmbedding(FeatureConfig(table()))
    layer(np.array([0]))
    assert list(vectors(layer)) == []


# Errors come with the call, not with the first batch.


def test_a_layer_without_a_table_is_refused():
    layer = DynamicEmbedding(FeatureConfig(table()), name="embedding")
    message = "Layer 'embedding' has no table yet. Call it once, or build the model,"
    with pytest.raises(ValueError, match=re.escape(message)):
        vectors(layer)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_must_be_positive(batch_size):
    layer = DynamicEmbedding(FeatureConfig(table()))
    layer(np.array([0]))
    with pytest.raises(ValueError, match=f"Received: batch_size={batch_size}."):
        vectors(layer, batch_size)
