"""Numbers of half the size, while they travel."""

from typing import NamedTuple

import tensorflow as tf

from tfctr.distributed import engine

WIRE_DTYPES = (None, "float16", "bfloat16")
# The largest number of float16 is 65504; its smallest with full precision, 2^-14.
_LARGEST = 15


class Encoded(NamedTuple):
    """Rows ready to be sent.

    Attributes:
        values: `(n, dim)`.
        scales: float32 `(ranks,)`, by which each rank has multiplied its rows, or
            `None` if no rank has.
    """

    values: tf.Tensor
    scales: tf.Tensor | None


def check_wire_dtype(wire_dtype: str | None) -> None:
    """Raises `ValueError` unless it is one of `WIRE_DTYPES`."""
    if wire_dtype not in WIRE_DTYPES:
        raise ValueError(
            "`wire_dtype` must be None, 'float16' or 'bfloat16'. "
            f"Received: wire_dtype={wire_dtype!r}."
        )


def encode(rows: tf.Tensor, wire_dtype: str | None, name: str) -> Encoded:
    """Returns rows `(n, dim)` as they are sent. Collective.

    float16 has few exponents: gradients of a mean over a large batch would vanish. So
    each rank multiplies its rows by the power of two that brings the largest to 2^15,
    and tells the others.
    """
    if wire_dtype is None:
        return Encoded(rows, None)
    if wire_dtype == "bfloat16":
        return Encoded(tf.bitcast(tf.cast(rows, tf.bfloat16), tf.uint16), None)
    largest = tf.reduce_max(tf.abs(rows))
    is_usual = (largest > 0.0) & (largest < tf.float32.max)
    # Beyond 2^±60 there is nothing to be saved, and nothing may overflow.
    exponent = tf.math.floor(
        tf.math.log(tf.where(is_usual, largest, 1.0)) / tf.math.log(2.0)
    )
    scale = 2.0 ** tf.clip_by_value(_LARGEST - 1 - exponent, -60.0, 60.0)
    scales = engine.all_gather(tf.reshape(scale, [1]), name)
    return Encoded(tf.cast(rows * scale, tf.float16), scales)


def decode(values: tf.Tensor, scales: tf.Tensor | None, sizes: tf.Tensor) -> tf.Tensor:
    """Returns the float32 rows `(n, dim)` of which each rank has sent so many.

    Args:
        values: `(n, dim)`, as received.
        scales: As `encode` gave them.
        sizes: int32 `(ranks,)`.
    """
    if values.dtype == tf.uint16:
        return tf.cast(tf.bitcast(values, tf.bfloat16), tf.float32)
    if scales is None:
        return values
    return tf.cast(values, tf.float32) / tf.repeat(scales, sizes)[:, None]
