"""Pooling of bags against a loop over the bags."""

import numpy as np
import pytest
import tensorflow as tf

from keras_layers.pooling import pool_axis, pool_segments

# The lengths of the bags; two are empty. The last bag has no weight at all.
LENGTHS = (2, 0, 3, 1, 0, 2)
DIM = 3
COMBINERS = ("sum", "mean", "sqrtn")


def bags():
    """Vectors and weights of each bag."""
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=(length, DIM)) for length in LENGTHS]
    weights = [rng.uniform(0.5, 2.0, size=length) for length in LENGTHS]
    weights[-1][:] = 0.0
    return vectors, weights


def pooled(vectors, weights, combiner):
    """The definition, bag by bag, in float64."""
    result = np.zeros((len(vectors), DIM))
    for i, (v, w) in enumerate(zip(vectors, weights, strict=True)):
        by = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt(np.square(w).sum())}
        if w.any():
            result[i] = (v * w[:, np.newaxis]).sum(axis=0) / by[combiner]
    return result


def weight_gradient(vectors, weights, combiner, upstream, step=1e-6):
    """By central differences; zero for bags without ids or weight."""
    result = [np.zeros_like(w) for w in weights]
    for i, w in enumerate(weights):
        for j in range(len(w) if w.any() else 0):
            up, down = ([w.copy() for w in weights] for _ in range(2))
            up[i][j] += step
            down[i][j] -= step
            moved = pooled(vectors, up, combiner) - pooled(vectors, down, combiner)
            result[i][j] = (moved * upstream).sum() / (2 * step)
    return result


def padded(parts, *shape):
    """The bags as one array, with zeros behind them."""
    result = np.zeros((len(parts), max(LENGTHS), *shape), np.float32)
    for i, part in enumerate(parts):
        result[i, : len(part)] = part
    return result


def segments():
    return tf.constant(np.repeat(np.arange(len(LENGTHS)), LENGTHS))


def flat(parts):
    return tf.constant(np.concatenate(parts), tf.float32)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_axis_is_pooled_as_defined(combiner):
    vectors, weights = bags()
    result = pool_axis(padded(vectors, DIM), padded(weights), combiner)
    expected = pooled(vectors, weights, combiner)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_segments_are_pooled_as_defined(combiner):
    vectors, weights = bags()
    result = pool_segments(
        flat(vectors), flat(weights), segments(), tf.constant(6, tf.int64), combiner
    )
    expected = pooled(vectors, weights, combiner)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_no_weights_are_ones(combiner):
    vectors, weights = bags()
    ones = [np.ones_like(w) for w in weights]
    result = pool_segments(
        flat(vectors), None, segments(), tf.constant(6, tf.int64), combiner
    )
    expected = pooled(vectors, ones, combiner)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_axis_may_be_any_but_the_first(combiner):
    vectors, weights = bags()
    vectors, weights = padded(vectors, DIM), padded(weights)
    deep = pool_axis(
        vectors.reshape(2, 3, -1, DIM), weights.reshape(2, 3, -1), combiner
    )
    expected = pool_axis(vectors, weights, combiner)
    np.testing.assert_array_equal(tf.reshape(deep, [6, DIM]), expected)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_weight_gradients_of_segments_are_finite_and_right(combiner):
    vectors, weights = bags()
    upstream = np.random.default_rng(1).normal(size=(6, DIM)).astype("float32")
    w = flat(weights)
    with tf.GradientTape() as tape:
        tape.watch(w)
        result = pool_segments(
            flat(vectors), w, segments(), tf.constant(6, tf.int64), combiner
        )
    gradient = tape.gradient(result, w, output_gradients=upstream)
    expected = weight_gradient(vectors, weights, combiner, upstream)
    if combiner == "sum":  # Linear, so that it has a slope at zero weight too.
        expected[-1] = vectors[-1] @ upstream[-1]
    np.testing.assert_allclose(gradient, np.concatenate(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_weight_gradients_of_an_axis_are_finite_and_right(combiner):
    vectors, weights = bags()
    upstream = np.random.default_rng(1).normal(size=(6, DIM)).astype("float32")
    w = tf.constant(padded(weights))
    with tf.GradientTape() as tape:
        tape.watch(w)
        result = pool_axis(padded(vectors, DIM), w, combiner)
    gradient = tape.gradient(result, w, output_gradients=upstream).numpy()
    assert np.isfinite(gradient).all()
    expected = weight_gradient(vectors, weights, combiner, upstream)
    for i, length in enumerate(LENGTHS[:-1]):
        np.testing.assert_allclose(
            gradient[i, :length], expected[i], rtol=1e-4, atol=1e-5
        )
        if length == 0 and combiner != "sum":
            np.testing.assert_array_equal(gradient[i], np.zeros(max(LENGTHS)))


def test_no_bags_pool_to_nothing():
    nothing = tf.zeros((0,), tf.int64)
    result = pool_segments(
        tf.zeros((0, DIM)), None, nothing, tf.constant(0, tf.int64), "mean"
    )
    assert result.shape == (0, DIM)
