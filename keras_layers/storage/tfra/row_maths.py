"""The fused update of `cc/store/sparse_optimizer.h`, in stock TensorFlow ops.

They run wherever the rows are: on the CPU or on a GPU.
"""

from typing import cast

import tensorflow as tf

from keras_layers.row_clipping import clip_lengths, l2_gradients, shorten
from tfctr_ops import SparseOptimizer


def initial_slots(rule: SparseOptimizer, dim: int) -> list[float]:
    """Returns the optimizer's state of a row that was never updated."""
    num_floats = rule.num_slot_floats(dim)
    accumulators = {
        "adagrad": num_floats,
        "rowwise_adagrad": num_floats,
        "ftrl": dim,  # The linear term follows, and starts at zero.
    }.get(rule.kind, 0)
    start = rule.initial_accumulator_value
    return [start] * accumulators + [0.0] * (num_floats - accumulators)


def clip_gradients(
    rule: SparseOptimizer, weights: tf.Tensor, gradients: tf.Tensor, counts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the gradients of distinct rows, clipped, and how many became shorter.

    CowClip, with the norms of rows: `g * min(1, clip / |g|)`, where
    `clip = count * max(clip_ratio * |w|, clip_floor)`.

    Args:
        rule: `SparseOptimizer` with a `clip_ratio`.
        weights: float32 `(n, dim)`, as they are before the update.
        gradients: float32 `(n, dim)`, summed over equal keys.
        counts: int32 `(n,)`. How many samples have each key.

    References:
        - [Zheng et al., 2022](https://arxiv.org/abs/2204.06240), Algorithm 1
    """
    ratio = cast(float, rule.clip_ratio)  # Whoever calls has looked.
    samples = tf.cast(counts, tf.float32)
    limits = clip_lengths(weights, samples, ratio, rule.clip_floor)
    clipped, are_long = shorten(gradients, limits)
    return clipped, tf.math.count_nonzero(are_long)


def update_rows(
    rule: SparseOptimizer,
    rows: tf.Tensor,
    gradients: tf.Tensor,
    learning_rate: tf.Tensor,
    updates: tf.Tensor,
    counts: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Returns distinct rows after one update, in parts that stand side by side.

    Args:
        rule: `SparseOptimizer`.
        rows: float32 `(n, dim + slots)`, or wider: what follows is not looked at.
        gradients: float32 `(n, dim)`, summed over equal keys, and clipped.
        learning_rate: float32 scalar.
        updates: int64. The number of this update, counted from 1, for the bias
            correction of Adam: a scalar, or `(n, 1)` where each row counts its own.
        counts: int32 `(n,)`. How many samples have each key; `None`: all have one.

    Returns:
        float32 tensors of `n` rows, together `dim + slots` wide.
    """
    dim = gradients.shape[1]
    weights = rows[:, :dim]
    slots = rows[:, dim : dim + rule.num_slot_floats(dim)]
    if rule.l2_penalty:
        gradients += l2_gradients(weights, counts, rule.l2_penalty)
    if rule.weight_decay:
        weights *= 1.0 - learning_rate * rule.weight_decay
    if rule.kind == "sgd":
        return [weights - learning_rate * gradients]
    if rule.kind in ("adagrad", "rowwise_adagrad"):
        squares = tf.square(gradients)
        if rule.kind == "rowwise_adagrad":
            squares = tf.reduce_mean(squares, axis=1, keepdims=True)
        slots += squares
        weights -= learning_rate * gradients / tf.sqrt(slots + rule.epsilon)
        return [weights, slots]
    if rule.kind == "adam":
        momentum, variance = slots[:, :dim], slots[:, dim:]
        momentum += (1.0 - rule.beta_1) * (gradients - momentum)
        variance += (1.0 - rule.beta_2) * (tf.square(gradients) - variance)
        rate = _adam_rate(rule, learning_rate, updates)
        weights -= rate * momentum / (tf.sqrt(variance) + rule.epsilon)
        return [weights, momentum, variance]
    moved = _ftrl(rule, weights, slots, gradients, learning_rate)
    # A learning rate of 0, as at the start of a warm-up, moves nothing.
    return [tf.where(learning_rate > 0.0, moved, tf.concat([weights, slots], axis=1))]


def _adam_rate(
    rule: SparseOptimizer, learning_rate: tf.Tensor, updates: tf.Tensor
) -> tf.Tensor:
    # 1 - beta_2 ** t has no digit left in float32 after a few updates.
    t = tf.cast(updates, tf.float64)
    beta_1, beta_2 = (
        tf.constant(beta, tf.float64) for beta in (rule.beta_1, rule.beta_2)
    )
    correction = tf.sqrt(1.0 - tf.pow(beta_2, t)) / (1.0 - tf.pow(beta_1, t))
    return tf.cast(tf.cast(learning_rate, tf.float64) * correction, tf.float32)


def _ftrl(
    rule: SparseOptimizer,
    weights: tf.Tensor,
    slots: tf.Tensor,
    gradients: tf.Tensor,
    learning_rate: tf.Tensor,
) -> tf.Tensor:
    dim = gradients.shape[1]
    squares, linear = slots[:, :dim], slots[:, dim:]
    before = _power(rule, squares)
    squares += tf.square(gradients)
    after = _power(rule, squares)
    pull = (after - before) / learning_rate
    linear += gradients + 2.0 * rule.l2_shrinkage * weights - pull * weights
    clipped = tf.clip_by_value(linear, -rule.l1, rule.l1)
    scale = after / learning_rate + 2.0 * rule.l2 + rule.beta / learning_rate
    return tf.concat([(clipped - linear) / scale, squares, linear], axis=1)


def _power(rule: SparseOptimizer, squares: tf.Tensor) -> tf.Tensor:
    if rule.learning_rate_power == -0.5:
        return tf.sqrt(squares)
    return tf.pow(squares, -rule.learning_rate_power)
