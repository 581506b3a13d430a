"""Flat keys from inputs of every kind, and outputs from rows."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers.feature_ids import (
    check_structure,
    flatten_feature,
    num_columns,
    padding_mask,
    to_int64,
)
from keras_layers.table_config import FeatureConfig, TableConfig
from tfctr_ops import SparseOptimizer

TABLE = TableConfig("ads", dim=2, optimizer=SparseOptimizer("sgd"))
PLAIN = FeatureConfig(TABLE)
BAGS = FeatureConfig(TABLE, combiner="sum")
RAGGED = tf.ragged.constant([[5, 6], [], [7]], dtype=tf.int64)
SPARSE = tf.sparse.from_dense([[0, 5, 6], [0, 0, 0], [7, 0, 0]])


def flatten(inputs, config=PLAIN, weights=None, numbers=(3,)):
    return flatten_feature(inputs, weights, config, numbers, "Feature 'x'")


def rows_like_ids(flat):
    """Rows that say which id they stand for."""
    return tf.cast(tf.stack([flat.ids, -flat.ids], axis=1), tf.float32)


@pytest.mark.parametrize(
    "dtype",
    ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
)
def test_integers_keep_their_value(dtype):
    ids = tf.constant([[0, 1], [2, 127]], dtype)
    result = to_int64(ids, "Layer 'x'")
    assert result.dtype == tf.int64
    np.testing.assert_array_equal(result, ids.numpy().astype("int64"))


def test_every_integer_is_an_id_of_its_own():
    signed = np.array([-(2**63), -1, 0, 1, 2**63 - 1])
    np.testing.assert_array_equal(to_int64(tf.constant(signed), "x"), signed)
    unsigned = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    result = to_int64(tf.constant(unsigned), "x")
    np.testing.assert_array_equal(result, unsigned.view("int64"))


def test_strings_become_their_fingerprint():
    words = tf.constant([["a", "b"], ["", "straße"]])
    result = to_int64(words, "Layer 'x'")
    # The stock op that an export can use: the same fingerprint, modulo a prime.
    prime = 2**31 - 1
    expected = tf.strings.to_hash_bucket_fast(words, prime)
    assert result.shape == words.shape
    np.testing.assert_array_equal(result.numpy().view("uint64") % prime, expected)


def test_fingerprints_never_change():
    # Saved rows are found by them.
    result = to_int64(tf.constant(["a", "tfctr"]), "Layer 'x'")
    expected = [-5528939962900187677, -2215106726084329269]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_floats_are_refused(dtype):
    message = (
        "Layer 'x' expects ids of an integer type or strings. Received: ids of dtype "
        f"{dtype}. keras.Input makes float32 unless told otherwise, and so does a "
        "model without one, such as a Sequential: say keras.Input(shape, "
        'dtype="int64"). Floats cannot tell large ids apart; cast whole numbers to '
        "int64."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        to_int64(tf.constant([1.0], dtype), "Layer 'x'")


@pytest.mark.parametrize("dtype", ["bool", "complex64"])
def test_other_types_are_refused(dtype):
    with pytest.raises(ValueError, match=f"Received: ids of dtype {dtype}.$"):
        to_int64(tf.cast([1], dtype), "Layer 'x'")


@pytest.mark.parametrize("shape, expected", [((None,), 1), ((5,), 1), ((None, 3), 3)])
def test_columns_are_counted(shape, expected):
    assert num_columns(shape, "Layer 'x'") == expected


@pytest.mark.parametrize("shape", [(), (None, None), (2, 0), (2, 3, 4)])
def test_shapes_without_columns_are_refused(shape):
    message = (
        "Layer 'x' takes each column for a feature of its own, and expects ids of "
        "shape (batch,) or (batch, features) with a static number of features, above "
        f"0. Received: shape {shape}. For ids of one feature, such as a sequence, pass "
        "FeatureConfig(table); for bags, a combiner."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        num_columns(shape, "Layer 'x'")


@pytest.mark.parametrize("shape", [[(2, 3), (2, 3)], {"a": (2, 3)}])
def test_one_feature_takes_one_tensor(shape):
    message = f"Layer 'x' expects one tensor of ids. Received: inputs of shape {shape}."
    with pytest.raises(ValueError, match=re.escape(message)):
        check_structure(shape, True, "Layer 'x'")


@pytest.mark.parametrize("shape", [(2, 3), [(2, 3)]])
def test_several_features_take_a_dict(shape):
    message = (
        "Layer 'x' expects a dict of ids by feature. Received: inputs of shape "
        f"{shape}."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        check_structure(shape, False, "Layer 'x'")


@pytest.mark.parametrize("shape", [(4,), (4, 1), (2, 3), (2, 3, 2), (0, 3)])
def test_dense_ids_keep_their_shape(shape):
    ids = np.arange(np.prod(shape)).reshape(shape)
    flat = flatten(ids)
    np.testing.assert_array_equal(flat.ids, ids.reshape(-1))
    np.testing.assert_array_equal(flat.features, [3])
    output = flat.finish(rows_like_ids(flat))
    np.testing.assert_array_equal(output, np.stack([ids, -ids], axis=-1))


def test_each_column_gets_its_number():
    config = FeatureConfig(TABLE, per_column=True)
    flat = flatten(np.array([[5, 6, 7], [5, 6, 7]]), config, numbers=(4, 2, 9))
    np.testing.assert_array_equal(flat.ids, [5, 6, 7, 5, 6, 7])
    np.testing.assert_array_equal(flat.features, [4, 2, 9])


def test_another_number_of_columns_is_refused():
    config = FeatureConfig(TABLE, per_column=True)
    with pytest.raises(
        ValueError,
        match=re.escape(
            "Feature 'x' was built for 2 features. Received: ids of shape (1, 3)."
        ),
    ):
        flatten(np.array([[1, 2, 3]]), config, numbers=(0, 1))


@pytest.mark.parametrize("ids", [RAGGED, SPARSE], ids=["ragged", "sparse"])
def test_bags_are_pooled_by_where_they_stand(ids):
    flat = flatten(ids, BAGS)
    np.testing.assert_array_equal(flat.ids, [5, 6, 7])
    output = flat.finish(rows_like_ids(flat))
    np.testing.assert_array_equal(output, [[11, -11], [0, 0], [7, -7]])


@pytest.mark.parametrize("padding_id, ids", [(0, [[5, 0], [0, 6]]), (-1, [[-1, -1]])])
def test_padding_is_an_absent_key(padding_id, ids):
    config = FeatureConfig(TABLE, padding_id=padding_id)
    flat = flatten(np.array(ids), config)
    is_id = np.array(ids) != padding_id
    np.testing.assert_array_equal(flat.features, np.where(is_id, 3, -1).reshape(-1))
    np.testing.assert_array_equal(padding_mask(tf.constant(ids), config), is_id)


def test_strings_are_padded_by_a_string():
    config = FeatureConfig(TABLE, padding_id="")
    words = tf.constant([["a", ""], ["", "b"]])
    np.testing.assert_array_equal(flatten(words, config).features, [3, -1, -1, 3])
    expected = [[True, False], [False, True]]
    np.testing.assert_array_equal(padding_mask(words, config), expected)


@pytest.mark.parametrize(
    "padding_id, ids, received",
    [
        (0, ["a"], "padding_id=0, ids of dtype string."),
        ("", [1], "padding_id='', ids of dtype int32."),
    ],
)
def test_padding_of_another_type_is_refused(padding_id, ids, received):
    message = (
        f"Feature 'x' expects a padding_id of the type of its ids. Received: {received}"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        flatten(tf.constant(ids), FeatureConfig(TABLE, padding_id=padding_id))


@pytest.mark.parametrize("config", [PLAIN, FeatureConfig(TABLE, "sum", padding_id=0)])
def test_without_padding_or_with_a_combiner_there_is_no_mask(config):
    assert padding_mask(tf.constant([[1, 0]]), config) is None


def test_symbolic_ids_have_a_symbolic_mask():
    config = FeatureConfig(TABLE, padding_id=0)
    mask = padding_mask(keras.Input((3,), dtype="int64"), config)
    assert (mask.shape, mask.dtype) == ((None, 3), "bool")


@pytest.mark.parametrize(
    "inputs", [np.array([[1, 0, 2]]), tf.ragged.constant([[1, 0, 2]], dtype=tf.int64)]
)
def test_padding_has_no_weight_in_a_bag(inputs):
    config = FeatureConfig(TABLE, combiner="mean", padding_id=0)
    flat = flatten(inputs, config)
    np.testing.assert_array_equal(flat.features, [3, -1, 3])
    output = flat.finish(rows_like_ids(flat))
    np.testing.assert_array_equal(output, [[1.5, -1.5]])


@pytest.mark.parametrize(
    "inputs, received",
    [
        (RAGGED, "takes ragged ids of shape (batch, None) together with a combiner"),
        (SPARSE, "takes sparse ids of shape (batch, ids) together with a combiner"),
    ],
    ids=["ragged", "sparse"],
)
def test_bags_without_a_combiner_are_refused(inputs, received):
    shape = tuple(inputs.shape)
    message = f"Feature 'x' {received}. Received: shape {shape}, combiner=None."
    with pytest.raises(ValueError, match=re.escape(message)):
        flatten(inputs)


def test_ragged_ids_of_other_ranks_are_refused():
    deep = tf.ragged.constant([[[1], [2, 3]]], dtype=tf.int64)
    with pytest.raises(
        ValueError,
        match=re.escape("Received: shape (1, None, None), combiner='sum'."),
    ):
        flatten(deep, BAGS)


def test_sparse_ids_of_other_ranks_are_refused():
    deep = tf.sparse.from_dense([[[1], [2]]])
    with pytest.raises(
        ValueError, match=re.escape("Received: shape (1, 2, 1), combiner='sum'.")
    ):
        flatten(deep, BAGS)


def test_a_bag_needs_an_axis():
    message = (
        "Feature 'x' pools the last axis of its ids, and expects at least shape "
        "(batch, ids). Received: shape (2,). Leave the combiner out for one id per "
        "example."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        flatten(np.array([1, 2]), BAGS)


def test_weights_without_a_combiner_are_refused():
    message = (
        "Feature 'x' expects weights only together with a combiner. Received: weights "
        "of shape (1, 2), combiner=None. Give the feature a combiner ('sum', 'mean' or "
        "'sqrtn'), or pass no weights."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        flatten(np.array([[1, 2]]), weights=tf.ones((1, 2)))


@pytest.mark.parametrize(
    "ids, weights, received",
    [
        (
            tf.constant([[1, 2]]),
            tf.ones((1, 3)),
            "ids of type EagerTensor and shape (1, 2), weights of type EagerTensor and "
            "shape (1, 3).",
        ),
        (tf.constant([[1, 2]]), tf.ones((1, 1)), "shape (1, 1)."),
        (RAGGED, tf.ones(3), "weights of type EagerTensor and shape (3,)."),
        (SPARSE, tf.ones((3, 3)), "weights of type EagerTensor and shape (3, 3)."),
        (
            tf.constant([[1, 2]]),
            tf.ragged.constant([[1.0, 2.0]]),
            "weights of type RaggedTensor and shape (1, None).",
        ),
    ],
)
def test_weights_of_another_form_are_refused(ids, weights, received):
    message = "Feature 'x' expects one weight per id, in the same layout. Received: "
    with pytest.raises(
        ValueError, match=re.escape(message) + ".*" + re.escape(received)
    ):
        flatten(ids, BAGS, weights)


@pytest.mark.parametrize(
    "weights",
    [[[1.0], [], [2.0]], [[1.0, 2.0], [3.0], []], [[1.0, 2.0], [], [3.0, 4.0]]],
)
def test_ragged_weights_must_lie_like_their_ids(weights):
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"Feature 'x' expects one weight per id(.|\n)*Received:(.|\n)*ids at"
        r"(.|\n)*0, 2, 2(.|\n)*weights at",
    ):
        flatten(RAGGED, BAGS, tf.ragged.constant(weights))


def test_sparse_weights_must_lie_like_their_ids():
    elsewhere = tf.sparse.from_dense([[9.0, 9.0, 0.0], [0.0] * 3, [9.0, 0.0, 0.0]])
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="Feature 'x' expects one weight per id, in the same layout",
    ):
        flatten(SPARSE, BAGS, elsewhere)


def test_layout_is_checked_in_a_graph_too():
    @tf.function
    def pool(weights):
        flat = flatten(RAGGED, BAGS, weights)
        return flat.finish(rows_like_ids(flat))

    output = pool(tf.ragged.constant([[1.0, 2.0], [], [3.0]]))
    np.testing.assert_array_equal(output, [[17, -17], [0, 0], [21, -21]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="one weight per id"):
        pool(tf.ragged.constant([[1.0], [2.0], [3.0]]))
