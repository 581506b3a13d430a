"""`ValueFormat`: the values of a TFRA table as the floats of a store."""

import dataclasses

import tensorflow as tf

VALUE_DTYPES = (tf.float32, tf.int32)


@dataclasses.dataclass(frozen=True)
class ValueFormat:
    """Converts values `(n, dim)` of a dtype to floats `(n, width)` and back.

    An int32 becomes two floats, its lower and its upper 16 bits: a store takes finite
    numbers alone, which the bits of an int32 need not be.

    Args:
        dtype: `tf.float32` or `tf.int32`.
        dim: Integer.
    """

    dtype: tf.DType
    dim: int

    @property
    def width(self) -> int:
        """Floats of a row."""
        return self.dim if self.dtype == tf.float32 else 2 * self.dim

    @property
    def in_files(self) -> str:
        """What the ops that read and write files call the dtype."""
        return "float" if self.dtype == tf.float32 else "int32"

    def to_floats(self, values: tf.Tensor) -> tf.Tensor:
        values = tf.reshape(values, [-1, self.dim])
        if self.dtype == tf.float32:
            return values
        halves = tf.cast(tf.bitcast(values, tf.uint16), tf.float32)
        return tf.reshape(halves, [-1, self.width])

    def from_floats(self, floats: tf.Tensor) -> tf.Tensor:
        if self.dtype == tf.float32:
            return floats
        halves = tf.cast(tf.reshape(floats, [-1, self.dim, 2]), tf.uint16)
        return tf.bitcast(halves, tf.int32)
