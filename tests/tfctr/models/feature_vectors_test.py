"""`DynamicTables` and `StaticTables`, against plain lookups."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import TieredStorage
from tfctr.feature import Feature
from tfctr.models import DynamicTables, StaticTables

DIM = 3
IDS = [Feature("user", "int64"), Feature("ids", "int64", width=2)]
BAG = Feature("tags", "string", is_bag=True)
MAKERS = {
    "dynamic": lambda: DynamicTables(keras.optimizers.SGD(0.1)),
    "static": lambda: StaticTables({"user": [1, 2], "ids": [5], "tags": ["a", "b"]}),
}


@pytest.fixture(params=MAKERS)
def vectors(request):
    return MAKERS[request.param]()


def inputs():
    return {
        "user": tf.constant([1, 2], tf.int64),
        "ids": tf.constant([[5, 5], [6, 5]], tf.int64),
        "tags": tf.ragged.constant([["a", "b", "c"], []], dtype=tf.string),
    }


def table_of(layer, feature):
    """The rows of one feature of a static layer: one for the rest, then by place."""
    (rows,) = [v.numpy() for v in layer.weights if f"{feature}_table" in v.path]
    return rows


# Either kind.


def test_each_kind_of_feature_has_its_shape(vectors):
    layer = vectors.layer("vectors", [*IDS, BAG], DIM)
    assert layer.name == "vectors"
    expected = {"user": (2, DIM), "ids": (2, 2, DIM), "tags": (2, DIM)}
    outputs = layer(inputs(), training=True)
    assert {name: tuple(x.shape) for name, x in outputs.items()} == expected


def test_the_declared_shapes_are_the_real_ones(vectors):
    layer = vectors.layer("vectors", [*IDS, BAG], DIM)
    declared = layer(
        {
            feature.name: keras.Input(
                feature.shape, dtype=feature.dtype, ragged=feature.is_bag
            )
            for feature in [*IDS, BAG]
        }
    )
    assert declared["user"].shape == declared["tags"].shape == (None, DIM)
    assert declared["ids"].shape == (None, 2, DIM)
    assert {x.dtype for x in declared.values()} == {"float32"}


def test_bags_give_the_mean_and_empty_ones_zeros(vectors):
    layer = vectors.layer("vectors", [BAG], DIM)

    def look_up(bags):
        ids = tf.ragged.constant(bags, dtype=tf.string, ragged_rank=1)
        return layer({"tags": ids}, training=True)["tags"].numpy()

    singles = look_up([["a"], ["b"], ["zzz"]])
    assert len(np.unique(singles, axis=0)) == 3
    bags = look_up([["a", "b"], [], ["b", "b", "zzz"]])
    expected = [singles[:2].mean(axis=0), np.zeros(DIM), singles[[1, 1, 2]].mean(0)]
    np.testing.assert_allclose(bags, expected, rtol=1e-6)


def test_linear_weights_start_at_zero(vectors):
    layer = vectors.layer("weights", [*IDS, BAG], 1, is_linear=True)
    for weights in layer(inputs(), training=True).values():
        np.testing.assert_array_equal(weights, np.zeros(weights.shape))


# Dynamic tables.


def test_equal_ids_of_two_columns_have_different_rows():
    layer = MAKERS["dynamic"]().layer("vectors", IDS[1:], DIM)
    first, second = layer({"ids": np.array([[5, 5]])}, training=True)["ids"][0].numpy()
    assert (first != second).any()


def test_rows_start_by_initializer_and_seed():
    def first_rows(name="vectors", **options):
        layer = DynamicTables("sgd", **options).layer(name, IDS[:1], DIM)
        return layer({"user": np.arange(50)}, training=True)["user"].numpy()

    np.testing.assert_array_equal(first_rows(seed=3), first_rows(seed=3))
    assert (first_rows(seed=3) != first_rows(seed=4)).all()
    assert (first_rows(seed=3, initializer="ones") == 1).all()
    # Two tables of a model, from one seed.
    assert (first_rows("linear", seed=3) != first_rows(seed=3)).all()
    keras.utils.set_random_seed(1)
    drawn = first_rows()
    assert (drawn != first_rows()).all()
    keras.utils.set_random_seed(1)
    np.testing.assert_array_equal(drawn, first_rows())


def test_a_seed_of_zero_is_a_seed():
    assert DynamicTables("sgd", seed=0).seed == 0


def test_tables_from_the_config_start_from_the_same_rows():
    tables = MAKERS["dynamic"]()
    copy = DynamicTables.from_config(tables.get_config())
    rows = [
        t.layer("vectors", IDS, DIM)(
            {"user": inputs()["user"], "ids": inputs()["ids"]}, training=True
        )
        for t in (tables, copy)
    ]
    for name in rows[0]:
        np.testing.assert_array_equal(rows[0][name], rows[1][name])


def optimizer_of(tables, is_linear):
    layer = tables.layer("table", IDS[:1], 1, is_linear=is_linear)
    return layer.features["user"].table.optimizer


def test_linear_weights_have_the_optimizer_of_the_vectors_or_their_own():
    adam, sgd = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.125)
    for is_linear in (False, True):
        assert optimizer_of(DynamicTables(adam), is_linear) is adam
    tables = DynamicTables(adam, linear_optimizer=sgd)
    assert optimizer_of(tables, is_linear=False) is adam
    assert optimizer_of(tables, is_linear=True) is sgd
    copy = DynamicTables.from_config(tables.get_config())
    assert type(optimizer_of(copy, is_linear=False)) is keras.optimizers.Adam
    of_copy = optimizer_of(copy, is_linear=True)
    assert type(of_copy) is keras.optimizers.SGD
    assert float(of_copy.learning_rate) == 0.125


def test_all_tables_share_one_budget():
    storage = TieredStorage("4KB")
    tables = DynamicTables("sgd", storage)
    first, second = (tables.layer(name, IDS[:1], DIM) for name in ("a", "b"))
    assert first.storage is second.storage is storage
    first({"user": np.arange(4)}, training=True)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Table 'b' is full"):
        for start in range(0, 1000, 100):
            second({"user": np.arange(start, start + 100)}, training=True)


# Static tables.


def test_static_ids_read_their_rows_and_strangers_share_one():
    vocabulary = [-(2**62), -1, 0, 7]  # -1 and 0 mean something to Keras.
    layer = StaticTables({"user": np.array(vocabulary)}).layer("v", IDS[:1], DIM)
    found = layer({"user": np.array([*vocabulary, 8, -2])})["user"].numpy()
    assert layer.num_rows == 5
    rows = table_of(layer, "user")
    assert rows.shape == (5, DIM)
    np.testing.assert_array_equal(found, rows[[1, 2, 3, 4, 0, 0]])


def test_static_strings_read_their_rows():
    feature = Feature("zip", "string")
    layer = StaticTables({"zip": np.array(["b", "a", ""])}).layer("v", [feature], DIM)
    found = layer({"zip": tf.constant(["", "a", "b", "[UNK]", "x"])})["zip"].numpy()
    np.testing.assert_array_equal(found, table_of(layer, "zip")[[3, 2, 1, 0, 0]])


@pytest.mark.parametrize("seed", [None, 3])
def test_static_tables_start_by_the_initializer_each_with_its_own_numbers(seed):
    normal = keras.initializers.RandomNormal(1.0, 0.25, seed)
    known = {name: np.arange(300) for name in ("user", "movie")}
    tables = StaticTables(known, normal)
    for each in (tables, StaticTables.from_config(tables.get_config())):
        layer = each.layer("v", [Feature(name, "int64") for name in known], 4)
        layer.build(None)
        rows = [layer.tables[name].embeddings.numpy() for name in known]
        # Four standard deviations of mean and deviation of 1204 numbers.
        for of_feature in rows:
            assert of_feature.mean() == pytest.approx(1.0, abs=4 * 0.25 / 1204**0.5)
            assert of_feature.std() == pytest.approx(0.25, abs=4 * 0.25 / 2408**0.5)
        assert (rows[0] != rows[1]).all()


def test_num_rows_counts_all_tables():
    assert MAKERS["static"]().layer("v", [*IDS, BAG], DIM).num_rows == 3 + 2 + 3


def test_an_empty_vocabulary_is_refused():
    message = "feature 'tags' must hold at least one id. Received: vocabularies={'tags'"
    with pytest.raises(ValueError, match=re.escape(message)):
        StaticTables({"tags": np.array([], np.str_)}).layer("v", [BAG], DIM)


def test_an_id_that_stands_twice_in_a_vocabulary_is_refused():
    message = "feature 'user' must hold each id once. Received: 7 twice or more."
    with pytest.raises(ValueError, match=re.escape(message)):
        StaticTables({"user": [3, 7, 7]}).layer("v", IDS[:1], DIM)


def test_a_missing_vocabulary_is_refused():
    message = (
        "of the features ['user', 'ids']. Received: vocabularies of ['user']. Add "
        "those of ['ids']."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        StaticTables({"user": [1]}).layer("v", IDS, DIM)
