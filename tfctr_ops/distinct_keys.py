"""The distinct keys of a batch, and the ways from their rows to the batch and back.

For rows that lie in tables of others: an `EmbeddingStore` does it all by itself.
"""

from typing import NamedTuple

import tensorflow as tf

from tfctr_ops import library


class BatchKeys(NamedTuple):
    """The distinct keys of a batch, in the order of the locks of a table of TFRA.

    Attributes:
        ids: int64 `(m,)`.
        features: int32 `(m,)`.
        words: int64 `(m,)`. What stands for them in a table of 64-bit keys: the id,
            xor the feature's multiple of the golden ratio.
        counts: int32 `(m,)`. How often each counts; `(0,)` if that was not asked.
        places: int32 `(n,)`. Of each key of the batch its place among them; -1 for an
            absent key.

    Example:

    >>> BatchKeys._fields
    ('ids', 'features', 'words', 'counts', 'places')
    """

    ids: tf.Tensor
    features: tf.Tensor
    words: tf.Tensor
    counts: tf.Tensor
    places: tf.Tensor


def distinct_keys(
    ids: tf.Tensor,
    features: tf.Tensor,
    num_features: int,
    counts: tf.Tensor | None = None,
    has_counts: bool = False,
) -> BatchKeys:
    """Finds the distinct keys of a batch.

    They come in the order of the locks of TFRA's hash table on the CPU, which is faster
    with them; those of one group of locks as they came.

    Args:
        ids: int64 `(n,)`.
        features: int32 `(p,)`, where p divides n: key i is `(features[i % p], ids[i])`.
            Feature -1 stands for an absent key.
        num_features: Integer. Features lie below it.
        counts: int32 `(n,)`, none negative. How often each key counts; those of equal
            keys are added. `None`: once.
        has_counts: Boolean. Whether to tell how often the distinct keys count.

    Raises:
        tf.errors.InvalidArgumentError: If a feature is out of range, p does not divide
            n, or there is not one count for each id.

    Example:

    >>> ids = tf.constant([7, 5, 7], tf.int64)
    >>> keys = distinct_keys(ids, tf.constant([0]), num_features=1)
    >>> keys.ids.numpy().tolist(), keys.places.numpy().tolist()
    ([7, 5], [0, 1, 0])
    """
    counts = tf.zeros([0], tf.int32) if counts is None else counts
    found = library.load().tfctr_distinct_keys(
        ids,
        features,
        counts,
        num_features=num_features,
        has_counts=has_counts,
    )
    return BatchKeys(*found)


def gather_weights(rows: tf.Tensor, places: tf.Tensor, dim: int) -> tf.Tensor:
    """Copies the first columns of rows to where the rows occur in a batch.

    Args:
        rows: float32 `(m, at least dim)`.
        places: int32 `(n,)`. Which of the rows; -1 stands for zeros.
        dim: Integer. How many columns.

    Returns:
        float32 `(n, dim)`.

    Raises:
        tf.errors.InvalidArgumentError: If there is no such row.

    Example:

    >>> gather_weights(tf.constant([[1.0, 2.0]]), tf.constant([0, -1]), dim=1).numpy()
    array([[1.],
           [0.]], dtype=float32)
    """
    return library.load().tfctr_gather_weights(rows, places, dim=dim)


def sum_gradients(
    gradients: tf.Tensor, places: tf.Tensor, num_rows: tf.Tensor | int
) -> tf.Tensor:
    """Adds up the gradients of each row, in the order of the batch.

    As `tf.math.unsorted_segment_sum` does, on all threads and with the same bits for
    any number of them.

    Args:
        gradients: float32 `(n, dim)`.
        places: int32 `(n,)`. Of which row each is; -1 for none.
        num_rows: int32 scalar.

    Returns:
        float32 `(num_rows, dim)`.

    Raises:
        tf.errors.InvalidArgumentError: If there is not one place for each gradient.

    Example:

    >>> sum_gradients(tf.constant([[1.0], [2.0], [3.0]]), tf.constant([0, 0, -1]), 1)
    <tf.Tensor: shape=(1, 1), dtype=float32, numpy=array([[3.]], dtype=float32)>
    """
    return library.load().tfctr_sum_gradients(gradients, places, num_rows)
