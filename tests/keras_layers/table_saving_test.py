"""What `load_own_variables` makes of saved tables: by name, whole, or not at all."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr_ops import SparseOptimizer

DIM = 3
SGD = SparseOptimizer("sgd", learning_rate=0.5)


def table(name="ads", dim=DIM, **options):
    return TableConfig(name, dim=dim, **{"optimizer": SGD, **options})


def dict_layer(features, built=True):
    layer = DynamicEmbedding(features, name="embedding")
    if built:
        layer({name: np.array([0]) for name in features})
    return layer


def saved(layer):
    store = {}
    layer.save_own_variables(store)
    return store


def test_equal_tables_are_saved_alike():
    stores = []
    for order in (1, -1):
        layer = DynamicEmbedding(FeatureConfig(table(seed=1)), name="embedding")
        layer(np.array([0]))
        ids = np.arange(-50, 50)[::order]
        layer.write_rows(ids, np.outer(ids, [1, 2, 3]))
        stores.append({})
        layer.save_own_variables(stores[-1])
    assert stores[0].keys() == stores[1].keys()
    for name, array in stores[0].items():
        np.testing.assert_array_equal(array, stores[1][name])


def three_features(order):
    ads, items = table(), table("items", 5)
    features = {
        "a": FeatureConfig(ads),
        "b": FeatureConfig(items),
        "c": FeatureConfig(ads),
    }
    return {name: features[name] for name in order}


@pytest.mark.parametrize("order", ["abc", "cab", "bca", "cba"])
def test_features_in_another_order_get_their_own_rows(order):
    layer = dict_layer(three_features("abc"))
    for number, name in enumerate("abc"):
        dim = layer.features[name].table.dim
        layer.write_rows([1, 2], np.full((2, dim), number + 1), name)
    other = dict_layer(three_features(order))
    other.write_rows([9], np.ones((1, 5)), "b")
    other.load_own_variables(saved(layer))
    for number, name in enumerate("abc"):
        rows = other.read_rows([1, 2, 9], name)
        expected = np.outer([number + 1, number + 1, 0], np.ones(rows.shape[1]))
        np.testing.assert_array_equal(rows, expected)
    assert other.size() == 6


def test_a_table_of_columns_may_get_more_of_them():
    slim, wide = (DynamicEmbedding(table(seed=1), name="x") for _ in range(2))
    slim(np.array([[1, 2]]))
    slim.write_rows([5], [[1, 2, 3]], 1)
    wide(np.array([[1, 2, 3]]))
    wide.load_own_variables(saved(slim))
    np.testing.assert_array_equal(wide.read_rows([5], 1), [[1, 2, 3]])
    assert wide.size() == 1


@pytest.mark.parametrize(
    "layer, message",
    [
        (
            lambda: DynamicEmbedding(table(dim=4), name="embedding"),
            "Layer 'embedding' expects rows of dim=4 with the slots of 'sgd' in table "
            "'ads'. Received: rows of dim=3 with the slots of 'sgd'. Give the table "
            "the dim and optimizer that the file was saved with.",
        ),
        (
            lambda: DynamicEmbedding(
                table(optimizer=keras.optimizers.Adam()), name="embedding"
            ),
            "expects rows of dim=3 with the slots of 'adam' in table 'ads'. Received: "
            "rows of dim=3 with the slots of 'sgd'.",
        ),
        (
            lambda: DynamicEmbedding(table("users"), name="embedding"),
            "Layer 'embedding' expects saved tables with the features "
            "[['users/0', 'users/1']]. Received: tables with the features "
            "[['ads/0', 'ads/1']]. The file was saved from a layer whose tables "
            "differ, or this layer is not built yet: call it once.",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(layer, message):
    saved_layer, other = DynamicEmbedding(table()), layer()
    saved_layer(np.array([[1, 2]]))
    saved_layer.write_rows([5], [[1, 2, 3]], 1)
    other(np.array([[1, 2]]))
    with pytest.raises(ValueError, match=re.escape(message)):
        other.load_own_variables(saved(saved_layer))


def test_columns_that_are_not_there_are_refused():
    wide, slim = (DynamicEmbedding(table(), name="embedding") for _ in range(2))
    wide(np.array([[1, 2, 3]]))
    slim(np.array([[1, 2]]))
    message = (
        "Layer 'embedding' has no features ['ads/2'], but the file has rows of them. "
        "Received: a layer with features ['ads/0', 'ads/1']."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        slim.load_own_variables(saved(wide))


@pytest.mark.parametrize("names", ["a", "b", "ac"])
def test_a_file_with_more_tables_is_refused(names):
    other = dict_layer(three_features(names))
    store = saved(dict_layer(three_features("abc")))
    with pytest.raises(ValueError, match="Received: tables with the features .*items"):
        other.load_own_variables(store)


def test_a_file_with_fewer_tables_is_refused():
    store = saved(dict_layer(three_features("ac")))
    other = dict_layer(three_features("abc"))
    with pytest.raises(ValueError, match=re.escape("features [['ads/a', 'ads/c']].")):
        other.load_own_variables(store)


def test_a_layer_without_tables_yet_is_refused():
    store = saved(dict_layer(three_features("abc")))
    with pytest.raises(ValueError, match="or this layer is not built yet: call it on"):
        dict_layer(three_features("abc"), built=False).load_own_variables(store)


def test_what_does_not_fit_as_a_whole_changes_nothing():
    layer = dict_layer(three_features("abc"))
    layer.write_rows([1], np.ones((1, DIM)), "a")
    other = dict_layer({**three_features("ac"), "b": FeatureConfig(table("items", 4))})
    other.write_rows([2], np.full((1, DIM), 2), "a")
    with pytest.raises(ValueError, match="Received: rows of dim=5"):
        other.load_own_variables(saved(layer))
    np.testing.assert_array_equal(other.read_rows([1, 2], "a"), [[0] * DIM, [2] * DIM])


@pytest.mark.parametrize(
    "had, has",
    [
        ((4, "adam"), (4, "ftrl")),
        ((16, "sgd"), (8, "adagrad")),
        ((12, "sgd"), (4, "adam")),
    ],
)
def test_slots_of_another_optimizer_are_refused_though_they_are_as_many(had, has):
    layers = []
    for dim, kind in (had, has):
        ads = table(dim=dim, optimizer=SparseOptimizer(kind))
        layers.append(dict_layer({"a": FeatureConfig(ads)}))
    message = (
        f"Layer 'embedding' expects rows of dim={has[0]} with the slots of '{has[1]}' "
        f"in table 'ads'. Received: rows of dim={had[0]} with the slots of '{had[1]}'."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        layers[1].load_own_variables(saved(layers[0]))


@pytest.mark.parametrize("order", ["abc", "bca"])
def test_tables_beyond_the_budget_change_nothing(order):
    layer = dict_layer(three_features("abc"))
    for name in "ab":
        dim = layer.features[name].table.dim
        layer.write_rows(np.arange(30), np.ones((30, dim)), name)
    # Room for one of the two tables.
    other = DynamicEmbedding(three_features(order), TieredStorage(ram=2000))
    other({name: np.array([0]) for name in order})
    other.write_rows([5], np.full((1, DIM), 2), "a")
    other.write_rows([6], np.full((1, 5), 3), "b")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="cannot take 30 rows"):
        other.load_own_variables(saved(layer))
    assert other.size() == 2
    np.testing.assert_array_equal(other.read_rows([5], "a"), [[2] * DIM])
    np.testing.assert_array_equal(other.read_rows([6], "b"), [[3] * 5])


@pytest.mark.parametrize(
    "features, names, received",
    [
        ([-1], ["ads/a"], "features ['ads/a'], rows of the numbers [-1]"),
        ([1], ["ads/a"], "features ['ads/a'], rows of the numbers [1]"),
        ([0], ["ads/a"] * 2, "features ['ads/a', 'ads/a'], rows of the numbers [0]"),
    ],
)
def test_rows_of_no_feature_are_refused(features, names, received):
    layer = dict_layer({"a": FeatureConfig(table())})
    layer.write_rows([5], np.ones((1, DIM)), "a")
    store = saved(layer)
    layout = {**json.loads(bytes(store["table_0_layout"])), "features": names}
    store["table_0_layout"] = np.frombuffer(json.dumps(layout).encode(), np.uint8)
    store["table_0_features"] = np.array(features, np.int32)
    message = (
        "Layer 'embedding' expects each saved row of table 'ads' to have one of "
        f"{len(names)} distinct features. Received: {received}. The file is damaged."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        layer.load_own_variables(store)
    np.testing.assert_array_equal(layer.read_rows([5], "a"), [[1] * DIM])
