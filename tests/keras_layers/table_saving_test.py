"""What `load_own_variables` makes of saved tables: by name, whole, or not at all."""

import re

import keras
import numpy as np
import pytest

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
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
            "Layer 'embedding' expects rows of 4 numbers in table 'ads', dim=4 weights "
            "and the slots of 'sgd'. Received: rows of 3 numbers. The file was saved "
            "with another dim or optimizer.",
        ),
        (
            lambda: DynamicEmbedding(
                table(optimizer=keras.optimizers.Adam()), name="embedding"
            ),
            "expects rows of 9 numbers in table 'ads', dim=3 weights and the slots of "
            "'adam'. Received: rows of 3 numbers.",
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
    with pytest.raises(ValueError, match="Received: rows of 5 numbers"):
        other.load_own_variables(saved(layer))
    np.testing.assert_array_equal(other.read_rows([1, 2], "a"), [[0] * DIM, [2] * DIM])
