"""The clip of CowClip and the L2 penalty in TensorFlow ops, against NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf

from keras_layers.storage.tfra.row_maths import clip_gradients, update_rows
from tfctr_ops import SparseOptimizer

# The worked example: rows, summed gradients, and samples of each id.
WEIGHTS = np.float32([[0.03, 0.04], [0, 0], [3e-6, 4e-6], [0.3, 0.4]])
GRADIENTS = np.float32([[3, 4], [3e-4, 4e-4], [0, 0], [0.003, 0.004]])
COUNTS = [2, 3, 1, 0]


def clip(ratio, floor, weights=WEIGHTS, gradients=GRADIENTS, counts=COUNTS):
    rule = SparseOptimizer("sgd", clip_ratio=ratio, clip_floor=floor)
    tensors = (tf.constant(x, tf.float32) for x in (weights, gradients))
    clipped, num_clipped = clip_gradients(rule, *tensors, tf.constant(counts))
    return clipped.numpy(), int(num_clipped)


@pytest.mark.parametrize("ratio, first", [(1.0, [0.06, 0.08]), (0.5, [0.03, 0.04])])
def test_the_worked_example(ratio, first):
    clipped, num_clipped = clip(ratio, 1e-5)
    expected = [first, [1.8e-5, 2.4e-5], [0, 0], [0, 0]]
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)
    assert num_clipped == 3


def test_the_worked_example_with_a_penalty():
    rule = SparseOptimizer("sgd", clip_ratio=1.0, clip_floor=1e-5, l2_penalty=1e-3)
    clipped, _ = clip(1.0, 1e-5)
    none = tf.zeros([], tf.int64)
    (moved,) = update_rows(
        rule,
        tf.constant(WEIGHTS),
        tf.constant(clipped),
        tf.constant(-1.0),
        none,
        tf.constant(COUNTS),
    )
    expected = np.array([[0.06006, 0.08008], [1.8e-5, 2.4e-5], [6e-9, 8e-9], [0, 0]])
    change = moved.numpy() - WEIGHTS
    # Of weights near zero, a float keeps fewer digits of the change.
    np.testing.assert_allclose(change[2], expected[2], rtol=1e-3)
    np.testing.assert_allclose(change[[0, 1, 3]], expected[[0, 1, 3]], rtol=2e-5)


@pytest.mark.parametrize("dim", [1, 3, 16])
@pytest.mark.parametrize("ratio, floor", [(1.0, 1e-5), (0.0, 0.5), (0.3, 0.0)])
def test_any_rows_as_in_numpy(dim, ratio, floor):
    rng = np.random.default_rng(dim)
    weights, gradients = rng.normal(size=(2, 200, dim)) * rng.choice(
        [0, 1], (2, 200, 1)
    )
    counts = rng.integers(0, 4, 200)
    longest = np.maximum(ratio * np.linalg.norm(weights, axis=1), floor)
    lengths = np.linalg.norm(gradients, axis=1)
    factors = np.minimum(1.0, counts * longest / np.where(lengths > 0, lengths, 1))
    clipped, num_clipped = clip(ratio, floor, weights, gradients, counts)
    expected = gradients * np.where(lengths > 0, factors, 1)[:, None]
    np.testing.assert_allclose(clipped, expected, rtol=1e-5, atol=1e-7)
    assert num_clipped == np.sum((factors < 1) & (lengths > 0))


@pytest.mark.parametrize("ratio, floor", [(math.inf, 0.0), (1.0, math.inf)])
def test_infinite_limits_clip_nothing_that_has_a_sample(ratio, floor):
    clipped, num_clipped = clip(ratio, floor)
    np.testing.assert_array_equal(clipped[:3], GRADIENTS[:3])
    np.testing.assert_array_equal(clipped[3], 0)
    assert num_clipped == 1


def test_the_penalty_comes_before_the_decay_and_the_rule():
    rate, decay, strength = 0.1, 0.2, 0.05
    rule = SparseOptimizer("adam", weight_decay=decay, l2_penalty=strength)
    w, g = np.float32([[0.5, -2.0]]), np.float32([[1.0, 3.0]])
    rows = tf.constant(np.concatenate([w, np.zeros((1, 4), np.float32)], axis=1))
    moved, momentum, variance = update_rows(
        rule, rows, tf.constant(g), tf.constant(rate), tf.constant(1, tf.int64)
    )
    g = g + 2 * strength * w
    np.testing.assert_allclose(momentum, 0.1 * g, rtol=1e-6)
    np.testing.assert_allclose(variance, 0.001 * g**2, rtol=1e-5)
    # In its first step Adam moves by the learning rate.
    expected = w * (1 - rate * decay) - rate * np.sign(g)
    np.testing.assert_allclose(moved, expected, rtol=1e-4)
