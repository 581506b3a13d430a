"""`FactorizationMachine` against a plain loop over all pairs."""

import numpy as np
import pytest
import tensorflow as tf

from keras_layers.factorization_machine import FactorizationMachine


def vectors(num_features=5, dim=3, batch=4):
    # Small whole numbers: every product and sum is exact, even in half precision.
    rng = np.random.default_rng(0)
    return rng.integers(-3, 4, size=(batch, num_features, dim)).astype("float64")


def pair_sum(x):
    """The definition: one dot product for each pair of rows."""
    sums = np.zeros((len(x), 1))
    for row, features in enumerate(x):
        for i in range(len(features)):
            for j in range(i):
                sums[row, 0] += np.dot(features[i], features[j])
    return sums


def pair_sum_gradient(x, upstream):
    gradient = np.zeros_like(x)
    for row, features in enumerate(x):
        for i in range(len(features)):
            for j in range(len(features)):
                if i != j:
                    gradient[row, i] += upstream[row, 0] * features[j]
    return gradient


def value_and_gradient(layer, x, upstream):
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    return y, tape.gradient(y, x, output_gradients=tf.cast(upstream, y.dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_output_is_the_sum_over_pairs(dtype):
    x = vectors().astype(dtype)
    y = FactorizationMachine(dtype=dtype)(x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, pair_sum(x))


@pytest.mark.parametrize("wrap", ["eager", "graph", "xla"])
def test_gradient_is_the_sum_of_the_other_vectors(wrap):
    x, upstream = vectors(), np.array([[1.0], [-2.0], [0.0], [3.0]])
    run = value_and_gradient
    if wrap != "eager":
        run = tf.function(run, jit_compile=wrap == "xla")
    _, gradient = run(FactorizationMachine(dtype="float64"), x, upstream)
    np.testing.assert_array_equal(gradient, pair_sum_gradient(x, upstream))


def test_second_derivative_couples_different_features_only():
    x, direction = vectors(batch=1), vectors(batch=3)[2:]
    layer, x = FactorizationMachine(dtype="float64"), tf.constant(x)
    with tf.GradientTape() as outer:
        outer.watch(x)
        _, gradient = value_and_gradient(layer, x, np.ones((1, 1)))
        along = tf.reduce_sum(gradient * direction)
    # The Hessian is one for (i, j) with i != j, so it maps `direction` to the sum
    # of the others, as the gradient maps `x`.
    expected = pair_sum_gradient(direction, np.ones((1, 1)))
    np.testing.assert_array_equal(outer.gradient(along, x), expected)


def test_one_feature_has_no_pair():
    x = vectors(num_features=1)
    y, gradient = value_and_gradient(FactorizationMachine(), x, np.ones((4, 1)))
    np.testing.assert_array_equal(y, np.zeros((4, 1)))
    np.testing.assert_array_equal(gradient, np.zeros_like(x))


def test_empty_batch_gives_an_empty_output():
    assert FactorizationMachine()(np.zeros((0, 5, 3))).shape == (0, 1)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_policy_sums_in_float32(half):
    # 26 equal vectors of sixteen 3s: the square of the sum is 97,344, beyond the
    # range of float16; the result, 46,800, is within it.
    x = np.full((2, 26, 16), 3.0)
    layer = FactorizationMachine(dtype=f"mixed_{half}")
    y, gradient = value_and_gradient(layer, x, np.ones((2, 1)))
    assert y.dtype == half
    np.testing.assert_array_equal(y, tf.cast(pair_sum(x), half))
    np.testing.assert_array_equal(gradient, np.full_like(x, 75.0))


def test_whole_numbers_are_read_as_floats():
    x = vectors()
    y = FactorizationMachine()(x.astype("int64"))
    assert y.dtype == "float32"
    np.testing.assert_array_equal(y, pair_sum(x))


@pytest.mark.parametrize("shape", [(None, 5, 3), (None, None, 3), (None, None, None)])
def test_sizes_may_be_unknown(shape):
    x, upstream = vectors(), np.ones((4, 1))
    signature = [tf.TensorSpec(shape, "float64"), tf.TensorSpec((None, 1), "float64")]
    layer = FactorizationMachine(dtype="float64")

    @tf.function(input_signature=signature)
    def step(x, upstream):
        y, gradient = value_and_gradient(layer, x, upstream)
        assert y.shape.as_list() == [None, 1]
        assert gradient.shape.as_list() == list(shape)
        return y, gradient

    y, gradient = step(x, upstream)
    np.testing.assert_array_equal(y, pair_sum(x))
    np.testing.assert_array_equal(gradient, pair_sum_gradient(x, upstream))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
def test_other_ranks_are_refused(shape):
    message = (
        r"`FactorizationMachine` layer 'fm' expects inputs of shape "
        r"\(batch, num_features, dim\)\. Received: input_shape="
        + str(shape).replace("(", r"\(").replace(")", r"\)")
        + r"\. Stack the embeddings first: keras\.ops\.stack\(embeddings, axis=1\)\."
    )
    with pytest.raises(ValueError, match=message):
        FactorizationMachine(name="fm")(np.ones(shape))
    with pytest.raises(ValueError, match=message):
        FactorizationMachine(name="fm").compute_output_shape(shape)
