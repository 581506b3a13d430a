"""Numbers of half the size, while they travel."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfctr.distributed import engine

WIRE_DTYPES = (None, "float16", "bfloat16")
# The largest number of float16 is 65504; its smallest with full precision, 2^-14.
_LARGEST = 15


class WireRows(NamedTuple):
    """Which rows are sent, or received.

    Attributes:
        sizes: int32 `(ranks,)`. How many to each rank, or from each.
        tables: Function without arguments that returns which table each row is of:
            int32 `(n,)`. Not every encoding asks.
    """

    sizes: tf.Tensor
    tables: Callable[[], tf.Tensor]


class Encoded(NamedTuple):
    """Rows ready to be sent.

    Attributes:
        values: `(n, dim)`.
        scales: float32 `(ranks, tables)`, by which each rank has multiplied the rows of
            each table, or `None` if no rank has.
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


def encode(
    rows: tf.Tensor, sent: WireRows, num_tables: int, wire_dtype: str | None, name: str
) -> Encoded:
    """Returns rows `(n, dim)` as they are sent. Collective.

    float16 has few exponents: gradients of a mean over a large batch would vanish. So
    each rank multiplies the rows of a table by the power of two that brings the largest
    to 2^15, and tells the others.
    """
    if wire_dtype is None:
        return Encoded(rows, None)
    if wire_dtype == "bfloat16":
        return Encoded(tf.bitcast(tf.cast(rows, tf.bfloat16), tf.uint16), None)
    tables = sent.tables()
    # What is no number must not hide the others; it stays as it is.
    sizes = tf.where(tf.math.is_finite(rows), tf.abs(rows), 0.0)
    largest = tf.math.unsorted_segment_max(
        tf.reduce_max(sizes, axis=1), tables, num_tables
    )
    # Without rows, or with zeros alone, any scale will do.
    exponent = tf.math.floor(
        tf.math.log(tf.where(largest > 0.0, largest, 1.0)) / tf.math.log(2.0)
    )
    # Beyond 2^±60 there is nothing to be saved, and nothing may overflow.
    scales = 2.0 ** tf.clip_by_value(_LARGEST - 1 - exponent, -60.0, 60.0)
    rows = rows * tf.gather(scales, tables)[:, None]
    return Encoded(
        tf.cast(rows, tf.float16), engine.all_gather(scales[None], f"{name}.scales")
    )


def decode(
    values: tf.Tensor, scales: tf.Tensor | None, received: WireRows
) -> tf.Tensor:
    """Returns the float32 rows `(n, dim)` that were sent.

    Args:
        values: `(n, dim)`, as received.
        scales: As `encode` gave them.
        received: Which rows these are.
    """
    if values.dtype == tf.uint16:
        return tf.cast(tf.bitcast(values, tf.bfloat16), tf.float32)
    if scales is None:
        return values
    ranks = tf.repeat(tf.range(tf.size(received.sizes)), received.sizes)
    of_each = tf.gather_nd(scales, tf.stack([ranks, received.tables()], axis=1))
    return tf.cast(values, tf.float32) / of_each[:, None]
