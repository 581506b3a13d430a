"""Pools the vectors of a bag of ids into one."""

import tensorflow as tf


def pool_axis(rows: tf.Tensor, weights: tf.Tensor, combiner: str) -> tf.Tensor:
    """Pools the last but one axis.

    With w the weights and e the vectors of a bag: `"sum"` is Σ w e, `"mean"` is
    Σ w e / Σ w, `"sqrtn"` is Σ w e / sqrt(Σ w²). A bag without weight gives zeros.

    Args:
        rows: float `(..., k, dim)`.
        weights: float `(..., k)`, zero where there is no id.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`.

    Returns:
        float `(..., dim)`.
    """
    total = tf.einsum("...kd,...k->...d", rows, weights)
    return _divide(
        total,
        tf.reduce_sum(weights, axis=-1),
        tf.reduce_sum(tf.square(weights), axis=-1),
        combiner,
    )


def pool_segments(
    rows: tf.Tensor,
    weights: tf.Tensor | None,
    segments: tf.Tensor,
    num_segments: tf.Tensor,
    combiner: str,
) -> tf.Tensor:
    """Pools vectors that belong to numbered bags; see `pool_axis`.

    Args:
        rows: float `(n, dim)`.
        weights: float `(n,)`, or `None` for ones.
        segments: int64 `(n,)`. The bag of each vector.
        num_segments: int64 scalar. How many bags there are.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`.

    Returns:
        float `(num_segments, dim)`.
    """
    if weights is None:
        weights = tf.ones_like(segments, dtype=rows.dtype)
    else:
        rows = rows * weights[:, tf.newaxis]

    def total(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(values, segments, num_segments)

    return _divide(total(rows), total(weights), total(tf.square(weights)), combiner)


def _divide(
    total: tf.Tensor, sum_weights: tf.Tensor, sum_squares: tf.Tensor, combiner: str
) -> tf.Tensor:
    if combiner == "sum":
        return total
    by = sum_weights if combiner == "mean" else _safe_sqrt(sum_squares)
    return tf.math.divide_no_nan(total, by[..., tf.newaxis])


def _safe_sqrt(x: tf.Tensor) -> tf.Tensor:
    """The square root, with gradient 0 at 0, where an empty bag would give NaN."""
    positive = x > 0
    return tf.where(positive, tf.sqrt(tf.where(positive, x, 1.0)), 0.0)
