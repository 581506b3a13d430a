"""A `DynamicEmbedding` made again from its configuration, and copies of it."""

import json

import keras
import numpy as np
import pytest

from helpers.saved_models import (
    COLUMNS,
    adam,
    data,
    fit,
    functional,
    layer_of,
    layers_of,
    table,
    tables,
)
from keras_layers import DynamicEmbedding, FeatureConfig, TieredStorage


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(9)


def features(kind):
    ads = table(seed=1, initializer="random_normal", default_row=[1, 2, 3])
    items = table("items", 5, seed=2, bad_gradients="skip")
    shared = keras.optimizers.Adagrad(0.3)
    return {
        "table": lambda: ads,
        "bag": lambda: FeatureConfig(ads, "sqrtn", padding_id=0),
        "strings": lambda: FeatureConfig(ads, padding_id=""),
        "dict": lambda: {
            "a": FeatureConfig(ads, per_column=True, namespace="x"),
            "b": FeatureConfig(items, "mean"),
            "c": FeatureConfig(ads),
        },
        "one optimizer": lambda: {
            "a": FeatureConfig(table("a", optimizer=shared)),
            "b": FeatureConfig(table("b", optimizer=shared)),
        },
    }[kind]()


@pytest.mark.parametrize("kind", ["table", "bag", "strings", "dict", "one optimizer"])
def test_the_configuration_is_json_and_comes_back(kind):
    storage = TieredStorage("1GB", eviction_policy="clock", num_threads=2)
    layer = DynamicEmbedding(features(kind), storage, save_limit="3GB", name="x")
    text = json.dumps(keras.saving.serialize_keras_object(layer))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert json.dumps(keras.saving.serialize_keras_object(again)) == text
    assert (again.name, again.save_limit) == ("x", "3GB")
    assert again.storage.get_config() == storage.get_config()
    assert list(again.features) == list(layer.features)
    for name, expected in layer.features.items():
        found = again.features[name]
        for field in ("combiner", "padding_id", "namespace", "per_column"):
            assert getattr(found, field) == getattr(expected, field)
        for field in ("name", "dim", "default_row", "bad_gradients"):
            assert getattr(found.table, field) == getattr(expected.table, field)
        assert found.table.row_initializer() == expected.table.row_initializer()
        assert found.table.sparse_optimizer() == expected.table.sparse_optimizer()
        assert expected.table.seed in (None, found.table.seed)


def test_an_optimizer_of_two_tables_is_one_object_again():
    layer = DynamicEmbedding(features("one optimizer"))
    again = DynamicEmbedding.from_config(layer.get_config())
    inputs = {"a": np.array([1]), "b": np.array([1])}
    again(inputs)
    a, b = (again.features[name].table.optimizer for name in "ab")
    assert a is b
    assert len(again.tables) == len(layer.features) - 1


def test_a_storage_of_two_layers_is_one_budget_again(tmp_path):
    storage = TieredStorage("1MB")
    inputs = keras.Input((COLUMNS,), dtype="int64")
    outputs = [DynamicEmbedding(table(n), storage)(inputs) for n in ("a", "b")]
    keras.Model(inputs, outputs).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    first, second = layers_of(loaded)
    assert first.storage is second.storage


# Copies.


def test_a_cloned_model_has_a_table_of_its_own():
    model = functional(DynamicEmbedding(table(optimizer=adam())))
    fit(model)
    clone = keras.models.clone_model(model)
    assert layer_of(clone).size() == 0
    before = tables(layer_of(model))
    fit(clone, first=1)
    for column, expected in zip(tables(layer_of(model))[0], before[0], strict=True):
        np.testing.assert_array_equal(column, expected)


def test_a_copy_starts_from_the_same_rows_though_no_seed_was_given():
    layer = DynamicEmbedding(table())
    copy = DynamicEmbedding.from_config(layer.get_config())
    ids, _ = data(2)
    np.testing.assert_array_equal(copy(ids, training=True), layer(ids, training=True))


def test_two_layers_with_one_table_config_share_no_rows(tmp_path):
    ads = table(seed=1)
    inputs = keras.Input((COLUMNS,), dtype="int64")
    left, right = DynamicEmbedding(ads), DynamicEmbedding(ads)
    model = keras.Model(inputs, [left(inputs), right(inputs)])
    left.write_rows([5], [[1, 1, 1]], 0)
    np.testing.assert_array_equal(right.read_rows([5], 0), [[0, 0, 0]])
    model.save(tmp_path / "model.keras")
    left, right = layers_of(keras.models.load_model(tmp_path / "model.keras"))
    np.testing.assert_array_equal(left.read_rows([5], 0), [[1, 1, 1]])
    np.testing.assert_array_equal(right.read_rows([5], 0), [[0, 0, 0]])
