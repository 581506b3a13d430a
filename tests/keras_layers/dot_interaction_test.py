"""`DotInteraction` against a plain loop over all pairs."""

import re

import numpy as np
import pytest
import tensorflow as tf

from keras_layers.dot_interaction import DotInteraction


def vectors(num_features=5, dim=3, batch=4):
    # Small whole numbers: every product and sum is exact, even in half precision.
    rng = np.random.default_rng(0)
    return rng.integers(-3, 4, size=(batch, num_features, dim)).astype("float64")


def pairs(num_features, include_self):
    return [
        (i, j)
        for i in range(num_features)
        for j in range(num_features)
        if j < i or (include_self and j == i)
    ]


def dot_products(x, include_self):
    return np.array(
        [
            [
                np.dot(features[i], features[j])
                for i, j in pairs(len(features), include_self)
            ]
            for features in x
        ]
    )


def dot_products_gradient(x, upstream, include_self):
    gradient = np.zeros_like(x)
    for row, features in enumerate(x):
        for column, (i, j) in enumerate(pairs(len(features), include_self)):
            gradient[row, i] += upstream[row, column] * features[j]
            gradient[row, j] += upstream[row, column] * features[i]
    return gradient


def value_and_gradient(layer, x, upstream):
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    return y, tape.gradient(y, x, output_gradients=tf.cast(upstream, y.dtype))


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("num_features", [2, 5])
def test_output_and_gradient_are_those_of_the_loop(num_features, include_self):
    x = vectors(num_features)
    expected = dot_products(x, include_self)
    upstream = (
        np.random.default_rng(1).integers(-3, 4, expected.shape).astype("float64")
    )
    layer = DotInteraction(include_self, dtype="float64")
    y, gradient = value_and_gradient(layer, x, upstream)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(
        gradient, dot_products_gradient(x, upstream, include_self)
    )


def test_one_feature_has_a_product_with_itself():
    y = DotInteraction(include_self=True)(np.array([[[1.0, 2.0, 3.0]]]))
    np.testing.assert_array_equal(y, [[14.0]])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_policy_computes_in_half_precision(half):
    x = vectors()
    layer = DotInteraction(dtype=f"mixed_{half}")
    y, gradient = value_and_gradient(layer, x, np.ones((4, 10)))
    assert y.dtype == half
    np.testing.assert_array_equal(y, dot_products(x, False))
    np.testing.assert_array_equal(
        gradient, dot_products_gradient(x, np.ones((4, 10)), False)
    )


def test_whole_numbers_are_read_as_floats():
    x = vectors()
    y = DotInteraction()(x.astype("int64"))
    assert y.dtype == "float32"
    np.testing.assert_array_equal(y, dot_products(x, False))


@pytest.mark.parametrize("shape", [(None, 5, 3), (None, 5, None)])
def test_batch_and_dim_may_be_unknown(shape):
    layer = DotInteraction(dtype="float64")

    @tf.function(input_signature=[tf.TensorSpec(shape, "float64")])
    def run(x):
        y = layer(x)
        assert y.shape.as_list() == [None, 10]
        return y

    x = vectors()
    np.testing.assert_array_equal(run(x), dot_products(x, False))


@pytest.mark.parametrize("shape", [(2, 3), (2, None, 4), (2, 3, 4, 5)])
def test_shapes_without_a_static_number_of_features_are_refused(shape):
    message = re.escape(
        "`DotInteraction` layer 'dot' expects inputs of shape (batch, num_features, "
        f"dim), with a static `num_features`. Received: input_shape={shape}. "
        "Stack the embeddings first: keras.ops.stack(embeddings, axis=1)."
    )
    with pytest.raises(ValueError, match=message):
        DotInteraction(name="dot").build(shape)
    with pytest.raises(ValueError, match=message):
        DotInteraction(name="dot").compute_output_shape(shape)


def test_one_feature_without_itself_is_refused():
    message = re.escape(
        "`DotInteraction` layer 'dot' expects at least two features to pair. "
        "Received: input_shape=(2, 1, 4). "
        "Stack more embeddings, or pass include_self=True."
    )
    with pytest.raises(ValueError, match=message):
        DotInteraction(name="dot")(np.ones((2, 1, 4)))


def test_number_of_features_is_fixed_by_the_first_call():
    layer = DotInteraction()
    layer(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match=r"expected axis 1 .* to have value 3"):
        layer(np.ones((2, 5, 4)))
