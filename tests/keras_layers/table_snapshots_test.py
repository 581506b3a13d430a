"""Snapshots of a layer: all its tables, counters, seeds and rates, at one moment."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr_ops import read_info

IDS = np.arange(200)
UNSEEN = np.arange(10_000, 10_050)
NAMES = ("user", "item", "word")


def make_layer(seed=1, storage=None, order=NAMES, dims=(4, 4, 8)):
    """Three tables: two of one width, which share a live table, and a wider one."""
    optimizer = keras.optimizers.Adagrad(0.1)
    tables = {
        name: TableConfig(f"{name}s", dim, optimizer, seed=seed + number)
        for number, (name, dim) in enumerate(zip(NAMES, dims, strict=True))
    }
    features = {name: FeatureConfig(tables[name]) for name in order}
    layer = DynamicEmbedding(features, storage, name="embedding")
    layer.build(dict.fromkeys(order, (None,)))
    return layer


def over_ssd(directory):
    return TieredStorage("4KB", directory)


def train(layer, ids=IDS, steps=1):
    for step in range(steps):
        with tf.GradientTape() as tape:
            inputs = {name: tf.constant(ids + step) for name in layer.features}
            outputs = layer(inputs, training=True)
            loss = sum(tf.reduce_sum(tf.sin(output)) for output in outputs.values())
        tape.gradient(loss, layer.trainable_variables)


def save(layer, directory, scratch):
    layer.begin_snapshot(directory, scratch)
    return layer.finish_snapshot()


def rows_of(layer):
    """Ids and vectors of each feature, to the bit, and the counters."""
    rows = {
        name: (ids.tolist(), vectors.tobytes())
        for name, ids, vectors in layer.export(10**6)
    }
    return rows, [int(weight) for weight in layer.weights if weight.shape == ()]


def first_rows(layer):
    """The vectors that training gives ids it has not seen."""
    inputs = {name: tf.constant(UNSEEN) for name in layer.features}
    outputs = layer(inputs, training=True)
    return {name: outputs[name].numpy() for name in layer.features}


@pytest.mark.parametrize("kinds", ["ram ram", "ram ssd", "ssd ram", "ssd ssd"])
def test_a_restored_layer_goes_on_as_the_saved_one(tmp_path, kinds):
    storages = [
        over_ssd(tmp_path / f"ssd{i}") if kind == "ssd" else None
        for i, kind in enumerate(kinds.split())
    ]
    layer = make_layer(storage=storages[0])
    train(layer, steps=3)
    counts = save(layer, tmp_path / "saved", tmp_path / "scratch")
    assert counts["rows"] == layer.size() == 3 * 202
    other = make_layer(seed=77, storage=storages[1])
    train(other, UNSEEN)  # Which shall be gone.
    other.restore_snapshot(tmp_path / "saved")
    assert rows_of(other) == rows_of(layer)
    for each in (layer, other):
        train(each, IDS + 100, steps=2)
    assert rows_of(other) == rows_of(layer)


def test_unseen_ids_start_as_they_would_have_in_the_saved_layer(tmp_path):
    layer, other = make_layer(seed=1), make_layer(seed=50)
    train(layer)
    save(layer, tmp_path / "saved", tmp_path)
    expected = first_rows(layer)
    for name, rows in first_rows(make_layer(seed=50)).items():
        assert not np.any(np.all(rows == expected[name], axis=1))
    other.restore_snapshot(tmp_path / "saved")
    for name, rows in first_rows(other).items():
        np.testing.assert_array_equal(rows, expected[name])
    # And a layer made from its config.
    copy = DynamicEmbedding.from_config(other.get_config())
    copy.build(dict.fromkeys(NAMES, (None,)))
    for name, rows in first_rows(copy).items():
        np.testing.assert_array_equal(rows, expected[name])


def test_features_are_matched_by_name(tmp_path):
    layer = make_layer()
    train(layer)
    # So that rows of one feature could not pass for those of another.
    layer.write_rows(UNSEEN, np.full((50, 4), 7.0), "item")
    save(layer, tmp_path / "saved", tmp_path)
    other = make_layer(seed=9, order=("item", "user", "word"))
    other.restore_snapshot(tmp_path / "saved")
    assert rows_of(other) == rows_of(layer)
    expected = first_rows(layer)
    for name, rows in first_rows(other).items():
        np.testing.assert_array_equal(rows, expected[name])


def test_the_learning_rate_comes_back(tmp_path):
    layer = make_layer()
    optimizer = layer.features["user"].table.optimizer
    optimizer.learning_rate = 0.025
    train(layer)
    save(layer, tmp_path / "saved", tmp_path)
    other = make_layer()
    other.restore_snapshot(tmp_path / "saved")
    rate = other.features["user"].table.optimizer.learning_rate
    assert float(rate) == np.float32(0.025)


def test_a_schedule_goes_on_where_it_was(tmp_path):
    def make():
        schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
        table = TableConfig("ads", 2, keras.optimizers.SGD(schedule), seed=1)
        layer = DynamicEmbedding({"ad": FeatureConfig(table)}, name="embedding")
        layer.build({"ad": (None,)})
        return layer

    layer, other = make(), make()
    train(layer, steps=3)
    save(layer, tmp_path / "saved", tmp_path)
    other.restore_snapshot(tmp_path / "saved")
    for each in (layer, other):
        train(each, steps=2)
    assert rows_of(other) == rows_of(layer)


def test_a_snapshot_is_of_the_moment_when_it_was_begun(tmp_path):
    layer = make_layer(storage=over_ssd(tmp_path / "ssd"))
    train(layer)
    expected = rows_of(layer)
    layer.begin_snapshot(tmp_path / "saved", tmp_path)
    train(layer, steps=3)
    layer.finish_snapshot()
    other = make_layer()
    other.restore_snapshot(tmp_path / "saved")
    assert rows_of(other) == expected


def test_only_changed_rows_are_written(tmp_path):
    layer = make_layer()
    train(layer)
    assert save(layer, tmp_path / "0", tmp_path / "scratch")["rows_written"] == 600
    train(layer, IDS[:10])
    counts = save(layer, tmp_path / "1", tmp_path / "scratch")
    assert (counts["rows"], counts["rows_written"]) == (600, 30)
    assert set(counts) == {"rows", "rows_written", "bytes", "linked_bytes"}


def test_a_snapshot_names_its_tables_and_seeds(tmp_path):
    layer = make_layer()
    train(layer)
    save(layer, tmp_path / "saved", tmp_path)
    metadata = json.loads(read_info(str(tmp_path / "saved" / "0")).metadata)
    assert metadata["table"] == "users"
    assert metadata["features"] == ["users/user", "items/item"]
    assert metadata["seeds"] == {"users": 1, "items": 2, "words": 3}
    assert metadata["learning_rate"] == pytest.approx(0.1)


def test_a_snapshot_of_other_features_is_refused_and_changes_nothing(tmp_path):
    layer = make_layer(order=("user", "word"))
    train(layer)
    save(layer, tmp_path / "saved", tmp_path)
    other = make_layer(order=("item", "word"))
    train(other, UNSEEN)
    before = rows_of(other)
    message = (
        "Layer 'embedding' expects a snapshot of the features ['items/item']. "
        f"Received: '{tmp_path / 'saved' / '0'}' with the features ['users/user']. "
        "Build the model as it was when the snapshot was made."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        other.restore_snapshot(tmp_path / "saved")
    assert rows_of(other) == before


def test_tables_in_another_order_are_told_by_their_features(tmp_path):
    layer = make_layer()
    save(layer, tmp_path / "saved", tmp_path)
    other = make_layer(order=("word", "user", "item"))
    with pytest.raises(ValueError, match="a snapshot of the features .'words/word'."):
        other.restore_snapshot(tmp_path / "saved")


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (TableConfig("users", 3, "sgd"), "dim=4 and 0"),
        (TableConfig("users", 4, "adagrad"), "dim=4 and 0"),
    ],
)
def test_a_snapshot_of_other_rows_is_refused_and_changes_nothing(
    tmp_path, config, found
):
    saved = DynamicEmbedding({"user": FeatureConfig(TableConfig("users", 4, "sgd"))})
    saved.build({"user": (None,)})
    saved.write_rows([1], np.ones((1, 4)), "user")
    save(saved, tmp_path / "saved", tmp_path)
    # The first of two tables is as it was saved, and must not be replaced alone.
    other = DynamicEmbedding({"user": FeatureConfig(config)})
    other.build({"user": (None,)})
    other.write_rows([2], np.ones((1, config.dim)), "user")
    slots = config.sparse_optimizer().num_slot_floats(config.dim)
    message = (
        f"expects a snapshot of rows of dim={config.dim} with {slots} optimizer "
        f"values. Received: '{tmp_path / 'saved' / '0'}' with {found}. Build the model"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        other.restore_snapshot(tmp_path / "saved")
    np.testing.assert_array_equal(
        other.read_rows([2], "user"), np.ones((1, config.dim))
    )


def test_a_damaged_table_is_named(tmp_path):
    layer = make_layer()
    train(layer)
    save(layer, tmp_path / "saved", tmp_path)
    info = read_info(str(tmp_path / "saved" / "1"))
    path = tmp_path / "saved" / "1" / info.files[0].name
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    other = make_layer()
    train(other)
    with pytest.raises(tf.errors.DataLossError, match=re.escape(f"'{path}'")):
        other.restore_snapshot(tmp_path / "saved")
    assert other.tables["words"].size() == 0


def test_what_is_not_begun_cannot_be_finished():
    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match="Table 'users' has no snapshot to finish",
    ):
        make_layer().finish_snapshot()


@pytest.mark.parametrize("in_graph", [False, True])
def test_prefetched_rows_are_in_memory(tmp_path, in_graph):
    config = TableConfig("ads", 64, keras.optimizers.SGD(0.1), seed=1)
    storage = TieredStorage("2MB", tmp_path)
    layer = DynamicEmbedding(FeatureConfig(config), storage)
    layer.build((None,))
    layer.write_rows(np.arange(20_000), np.ones((20_000, 64), "float32"))
    prefetch = tf.function(layer.prefetch) if in_graph else layer.prefetch

    def rows_read():
        return layer.stats()["ads"]["rows_read"]

    before = rows_read()
    prefetch(tf.range(1000, dtype=tf.int64))
    after = rows_read()
    assert after > before
    rows = layer(tf.range(1000, dtype=tf.int64), training=True)
    np.testing.assert_array_equal(rows, np.ones((1000, 64)))
    assert rows_read() == after
    assert layer.size() == 20_000


def test_parts_of_different_steps_are_no_snapshot(tmp_path):
    layer = make_layer()
    for part in ("part-00000-of-00002", "part-00001-of-00002"):
        train(layer)
        save(layer, tmp_path / part, tmp_path)
    for table in ("0", "1"):
        (tmp_path / "saved" / table).mkdir(parents=True)
        for part in tmp_path.glob("part-*"):
            (part / table).rename(tmp_path / "saved" / table / part.name)
    before = rows_of(layer)
    message = "parts of a table that were saved at one step. Received: '.*part-00001.*'"
    with pytest.raises(ValueError, match=f"{message} of step 2, and another of step 1"):
        layer.restore_snapshot(tmp_path / "saved")
    assert rows_of(layer) == before
