"""CowClip of distinct rows, in TensorFlow ops that run on any device.

`cc/store/row_kernels_impl.h` has the same formulas. A row with a count of 0 has no
sample: neither a gradient nor L2 is left of it.
"""

import math

import tensorflow as tf


def lengths_of(rows: tf.Tensor) -> tf.Tensor:
    """Returns the L2 norm of each row, `(n,)`."""
    # Half as many ops as `tf.norm`, which counts where a model has many small tables.
    return tf.sqrt(tf.reduce_sum(tf.square(rows), axis=-1))


def clip_lengths(
    weights: tf.Tensor, counts: tf.Tensor, ratio: float, floor: float
) -> tf.Tensor:
    """Returns how long the gradient of each row may be.

    `count * max(ratio * |w|, floor)`; where a count is 0 that is 0, and elsewhere it is
    infinite if `ratio` or `floor` is.

    Args:
        weights: Float tensor `(n, dim)`, as they are before the update.
        counts: Tensor `(n,)` of the same type. How many samples have each row.
        ratio: Float.
        floor: Float.

    Returns:
        Tensor `(n,)` of the same type.

    References:
        - [Zheng et al., 2022](https://arxiv.org/abs/2204.06240), algorithm 1
    """
    if math.isinf(ratio) or math.isinf(floor):
        longest = tf.fill(tf.shape(counts), tf.constant(math.inf, counts.dtype))
    else:
        longest = tf.maximum(ratio * lengths_of(weights), floor)
    # Zero times infinity is not a number.
    return tf.math.multiply_no_nan(longest, counts)


def shorten(gradients: tf.Tensor, limits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the rows of `gradients`, at most so long, and which were longer.

    A row of zeros is no longer than any limit, and NaN compares as no longer: it stays.

    Args:
        gradients: Float tensor `(n, dim)`.
        limits: Tensor `(n,)` of the same type.

    Returns:
        Tensor `(n, dim)`, and a boolean tensor `(n,)`.
    """
    lengths = lengths_of(gradients)
    is_longer = lengths > limits
    factors = tf.where(is_longer, limits / lengths, 1.0)
    return gradients * factors[:, tf.newaxis], is_longer


def l2_gradients(
    weights: tf.Tensor, counts: tf.Tensor | None, strength: float
) -> tf.Tensor:
    """Returns `2 * strength * w` of the rows that have a sample, and zeros of others.

    Args:
        weights: Float tensor `(n, dim)`.
        counts: Tensor `(n,)`. How many samples have each row; `None`: all have one.
        strength: Float.
    """
    if counts is None:
        return 2.0 * strength * weights
    # Of the vector: a condition on all weights takes several times as long.
    strengths = tf.where(counts > 0, tf.constant(2.0 * strength, weights.dtype), 0.0)
    return strengths[:, tf.newaxis] * weights
