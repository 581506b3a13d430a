"""Bags, padding and masks of `DynamicEmbedding`.

The oracle pools bag by bag, from a dict of vectors that `write_rows` gave the layer.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr_ops import SparseOptimizer

DIM = 3
COMBINERS = ("sum", "mean", "sqrtn")


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(7)


def table(name="ads", dim=DIM, **options):
    optimizer = SparseOptimizer("adagrad", learning_rate=0.5)
    return TableConfig(name, dim=dim, optimizer=optimizer, **options)


def write(layer, feature, vectors_by_id):
    """Gives a built layer known vectors."""
    ids, vectors = list(vectors_by_id), list(vectors_by_id.values())
    layer.write_rows(np.array(ids), np.array(vectors, np.float32), feature)


def random_vectors(ids, dim=DIM, seed=0):
    rng = np.random.default_rng(seed)
    return {int(i): rng.normal(size=dim).astype("float32") for i in ids}


# Bags.


def bags(kind):
    """Four bags, the second empty, as numbers and as a tensor of `kind`."""
    lists = [[3, 5, 3], [], [5], [7, 3]]
    weights = [[0.5, 2.0, 1.5], [], [0.25], [1.0, 3.0]]
    if kind == "ragged":
        return (
            lists,
            weights,
            tf.ragged.constant(lists, dtype=tf.int64),
            tf.ragged.constant(weights),
        )
    cells = [(i, j) for i, bag in enumerate(lists) for j in range(len(bag))]
    return (
        lists,
        weights,
        tf.SparseTensor(cells, tf.constant(sum(lists, []), tf.int64), (4, 3)),
        tf.SparseTensor(cells, tf.constant(sum(weights, []), tf.float32), (4, 3)),
    )


def pooled(lists, weights, known, combiner):
    """The definition, bag by bag."""
    output = np.zeros((len(lists), DIM))
    for row, (bag, w) in enumerate(zip(lists, weights, strict=True)):
        for i, weight in zip(bag, w, strict=True):
            output[row] += weight * known[i].astype("float64")
        by = {"sum": 1.0, "mean": sum(w), "sqrtn": np.sqrt(np.dot(w, w))}[combiner]
        output[row] /= by or 1.0
    return output


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_are_pooled(kind, combiner, weighted):
    lists, weights, ids, tensor = bags(kind)
    layer = DynamicEmbedding(table(), combiner=combiner)
    layer(ids)
    known = random_vectors([3, 5, 7])
    write(layer, None, known)
    if not weighted:
        weights, tensor = [[1.0] * len(bag) for bag in lists], None
    output = layer(ids, weights=tensor)
    expected = pooled(lists, weights, known, combiner)
    assert output.shape == (4, DIM)
    np.testing.assert_array_equal(output[1], np.zeros(DIM))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_dense_bags_are_pooled_and_padding_left_out(combiner, weighted):
    lists, weights, ragged, tensor = bags("ragged")
    ids = ragged.to_tensor(-1)
    layer = DynamicEmbedding(FeatureConfig(table(), combiner, padding_id=-1))
    layer(ids)
    known = random_vectors([3, 5, 7])
    write(layer, None, known)
    if weighted:
        # Whatever weight padding is given, it has none.
        given = tensor.to_tensor(9.0)
    else:
        weights, given = [[1.0] * len(bag) for bag in lists], None
    output = layer(ids, weights=given)
    expected = pooled(lists, weights, known, combiner)
    np.testing.assert_array_equal(output[1], np.zeros(DIM))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("kind", ["ragged", "sparse", "padded"])
def test_weights_of_empty_bags_have_finite_gradients(kind, combiner):
    lists, weights, ids, tensor = bags("sparse" if kind == "sparse" else "ragged")
    layer = DynamicEmbedding(FeatureConfig(table(), combiner, padding_id=-1))
    # Of the last bag, all weights are zero.
    values = tf.constant([0.5, 2.0, 1.5, 0.25, 0.0, 0.0])
    layer(ids)
    write(layer, None, random_vectors([3, 5, 7]))

    def output(values):
        if kind == "sparse":
            w = tf.SparseTensor(tensor.indices, values, tensor.dense_shape)
        else:
            w = tensor.with_flat_values(values)
        if kind == "padded":
            return layer(ids.to_tensor(-1), weights=w.to_tensor(), training=True)
        return layer(ids, weights=w, training=True)

    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = tf.reduce_sum(output(values))
    gradient = tf.convert_to_tensor(tape.gradient(loss, values)).numpy()
    assert np.isfinite(gradient).all()
    if combiner == "sum":
        assert (gradient != 0).all()
    else:
        np.testing.assert_array_equal(gradient[-2:], [0, 0])


def test_some_features_of_a_dict_may_have_weights():
    ads = table()
    layer = DynamicEmbedding(
        {
            "a": FeatureConfig(ads, "sum", namespace="x"),
            "b": FeatureConfig(ads, "sum", namespace="x"),
        }
    )
    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in "ab"}
    weights = keras.Input((2,), name="weights")
    outputs = layer(inputs, weights={"b": weights})
    model = keras.Model({**inputs, "weights": weights}, [outputs["a"], outputs["b"]])
    write(layer, "a", {1: [1, 2, 3], 2: [10, 20, 30]})
    ids = np.array([[1, 2]])
    a, b = model.predict(
        {"a": ids, "b": ids, "weights": np.array([[2.0, 0.5]])}, verbose=0
    )
    np.testing.assert_array_equal(a, [[11, 22, 33]])
    np.testing.assert_array_equal(b, [[7, 14, 21]])


def test_weights_may_be_a_list():
    layer = DynamicEmbedding(table(), combiner="sum")
    ids = np.array([[1, 2]])
    layer(ids)
    write(layer, None, {1: [1, 2, 3], 2: [10, 20, 30]})
    np.testing.assert_array_equal(layer(ids, weights=[[2.0, 0.5]]), [[7, 14, 21]])


def test_weights_stay_float32_under_mixed_precision():
    layer = DynamicEmbedding(table(), combiner="sum", dtype="mixed_bfloat16")
    ids = np.array([[1, 2]])
    layer(ids)
    write(layer, None, {1: [1, 1, 1], 2: [1, 1, 1]})
    # bfloat16 has 8 bits of precision: there 257 is 256.
    output = layer(ids, weights=tf.constant([[257.0, -256.0]]))
    assert output.dtype == "bfloat16"
    np.testing.assert_array_equal(tf.cast(output, "float32"), [[1, 1, 1]])


def test_a_batch_of_empty_bags_is_zeros():
    layer = DynamicEmbedding(table(), combiner="mean")
    ids = tf.ragged.constant([[], []], dtype=tf.int64, ragged_rank=1)
    np.testing.assert_array_equal(layer(ids, training=True), np.zeros((2, DIM)))
    assert layer.stats()["ads"]["rows"] == 0


def test_bags_of_sequences_pool_the_last_axis():
    layer = DynamicEmbedding(FeatureConfig(table(), combiner="mean"))
    ids = np.array([[[1, 2], [2, 2]], [[1, 1], [2, 1]]])
    layer(ids)
    write(layer, None, {1: [0, 2, 4], 2: [2, 4, 8]})
    expected = [[[1, 3, 6], [2, 4, 8]], [[0, 2, 4], [1, 3, 6]]]
    np.testing.assert_array_equal(layer(ids), expected)


# Padding and masks.


@pytest.mark.parametrize("training", [False, True])
def test_padding_reads_zeros_and_never_enters_the_table(training):
    config = FeatureConfig(table(initializer="ones", default_row=[2, 2, 2]), None, 0)
    layer = DynamicEmbedding(config)
    output = layer(np.array([[5, 0], [0, 0]]), training=training)
    value = 1.0 if training else 2.0
    expected = np.zeros((2, 2, DIM))
    expected[0, 0] = value
    np.testing.assert_array_equal(output, expected)
    assert layer.stats()["ads"]["rows"] == (1 if training else 0)


def test_padding_is_masked():
    layer = DynamicEmbedding(FeatureConfig(table(), padding_id=0))
    mask = layer.compute_mask(tf.constant([[5, 0], [0, 7]]))
    np.testing.assert_array_equal(mask, [[True, False], [False, True]])


def sequence_model(config, dtype):
    inputs = keras.Input((None,), dtype=dtype)
    vectors = DynamicEmbedding(config)(inputs)
    hidden = keras.layers.GlobalAveragePooling1D()(vectors)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


@pytest.mark.parametrize(
    "padding_id, short, long",
    [
        (0, [[5, 7]], [[5, 7, 0, 0]]),
        (-1, [[5, 7]], [[5, 7, -1, -1]]),
        ("", [["a", "b"]], [["a", "b", "", ""]]),
    ],
)
def test_masks_reach_the_layers_behind(padding_id, short, long):
    short, long = tf.constant(short), tf.constant(long)
    config = FeatureConfig(table(), padding_id=padding_id)
    model = sequence_model(config, short.dtype.name)
    model.compile("sgd", "mean_squared_error")
    model.fit(long, np.ones((1, 1)), verbose=0)
    assert model.layers[1].size() == 2
    np.testing.assert_array_equal(
        model.predict(short, verbose=0), model.predict(long, verbose=0)
    )


def test_features_of_a_dict_have_masks_of_their_own():
    ads = table()
    layer = DynamicEmbedding(
        {"history": FeatureConfig(ads, padding_id=0), "item": FeatureConfig(ads)}
    )
    inputs = {
        "history": keras.Input((None,), dtype="int64", name="history"),
        "item": keras.Input((), dtype="int64", name="item"),
    }
    outputs = layer(inputs)
    mean = keras.layers.GlobalAveragePooling1D()(outputs["history"])
    model = keras.Model(inputs, [mean, outputs["item"]])
    write(layer, "history", {1: [1, 2, 3], 2: [3, 4, 5]})
    ids = {"history": np.array([[1, 2, 0, 0], [2, 0, 0, 0]]), "item": np.array([1, 2])}
    mean, item = model.predict(ids, verbose=0)
    np.testing.assert_array_equal(mean, [[2, 3, 4], [3, 4, 5]])
    np.testing.assert_array_equal(item, np.zeros((2, DIM)))
