"""From rows to where they occur in a batch, and back, on the device of the rows."""

import tensorflow as tf

from tfctr_ops import gather_weights, sum_gradients


def weights_of(rows: tf.Tensor, places: tf.Tensor, dim: int, device: str) -> tf.Tensor:
    """Returns the weights `(n, dim)` of rows by their place; zeros where it is -1.

    Args:
        rows: float32 `(m, at least dim)`.
        places: int32 `(n,)`.
        dim: Integer.
        device: String. Where the rows are.
    """
    if not is_gpu(device):
        return gather_weights(rows, places, dim)
    with tf.device(device):
        padded = tf.pad(rows[:, :dim], [[1, 0], [0, 0]])
        return tf.gather(padded, places + 1)


def sums_of(
    gradients: tf.Tensor, places: tf.Tensor, num_rows: tf.Tensor, device: str
) -> tf.Tensor:
    """Returns the gradients `(num_rows, dim)` of rows, added up.

    Args:
        gradients: float32 `(n, dim)`.
        places: int32 `(n,)`. Of which row each is; -1 for none.
        num_rows: int32 scalar.
        device: String. Where the sums are to be.
    """
    if not is_gpu(device):
        return sum_gradients(gradients, places, num_rows)
    with tf.device(device):
        return tf.math.unsorted_segment_sum(gradients, places, num_rows)


def is_gpu(device: str) -> bool:
    """Whether the name of a device is that of a GPU."""
    return "GPU" in device.upper()
