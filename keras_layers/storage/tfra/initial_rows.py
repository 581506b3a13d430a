"""The first weights of a row, as `cc/store/row_initializer.h` has them."""

import tensorflow as tf

from tfctr_ops import RowInitializer

# Phi(-2), and Phi(2) - Phi(-2).
_TAIL_BELOW, _BETWEEN_TAILS = 0.02275013194817921, 0.9544997361036416


def initial_weights(
    law: RowInitializer, seeds: tf.Tensor, ids: tf.Tensor, dim: int
) -> tf.Tensor:
    """Returns the first weights of keys, equal to those of the store to about 1e-7.

    Args:
        law: `RowInitializer`.
        seeds: int64 `(n,)`. Of the feature of each key.
        ids: int64 `(n,)`.
        dim: Integer.

    Returns:
        float32 `(n, dim)`.
    """
    if law.kind == "constant":
        return tf.fill([tf.size(ids), dim], tf.constant(law.location, tf.float32))
    # On the CPU: not every integer op has a kernel on GPUs, and new keys are few.
    with tf.device("/CPU:0"):
        unit = _unit_numbers(seeds, ids, dim)
        if law.kind == "truncated_normal":
            unit = _TAIL_BELOW + _BETWEEN_TAILS * unit
        if law.kind != "uniform":
            unit = tf.math.ndtri(unit)
        return tf.cast(law.location + law.scale * unit, tf.float32)


def _unit_numbers(seeds: tf.Tensor, ids: tf.Tensor, dim: int) -> tf.Tensor:
    """Returns float64 `(n, dim)` in (0, 1), exact."""
    state = mix64(tf.bitcast(seeds, tf.uint64) + mix64(tf.bitcast(ids, tf.uint64)))
    # Little-endian: the low half of a word comes first.
    low, high = tf.unstack(tf.bitcast(state, tf.uint32), axis=1)
    columns = tf.cast(tf.range(dim), tf.uint32) * tf.constant(0x9E3779B9, tf.uint32)
    inner = _mix32(low[:, None] + columns)
    bits = _mix32(tf.bitwise.bitwise_xor(inner, high[:, None]))
    return tf.cast(_shift(bits, 9), tf.float64) * 2.0**-23 + 2.0**-24


def mix64(x: tf.Tensor) -> tf.Tensor:
    """Returns 64-bit words mixed, as `Mix64` of `cc/store/hash.h` does."""
    x = tf.bitwise.bitwise_xor(x, _shift(x, 30))
    x *= tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    x = tf.bitwise.bitwise_xor(x, _shift(x, 27))
    x *= tf.constant(0x94D049BB133111EB, tf.uint64)
    return tf.bitwise.bitwise_xor(x, _shift(x, 31))


def _mix32(x: tf.Tensor) -> tf.Tensor:
    x = tf.bitwise.bitwise_xor(x, _shift(x, 16)) * tf.constant(0x85EBCA6B, tf.uint32)
    x = tf.bitwise.bitwise_xor(x, _shift(x, 13)) * tf.constant(0xC2B2AE35, tf.uint32)
    return tf.bitwise.bitwise_xor(x, _shift(x, 16))


def _shift(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, tf.constant(bits, x.dtype))
