"""`sample_counts`: in how many samples the keys of a batch occur."""

import tensorflow as tf

from tfctr_ops import library


def sample_counts(ids: tf.Tensor, features: tf.Tensor, samples: tf.Tensor) -> tf.Tensor:
    """Returns counts that add up, over equal keys, to the samples that hold the key.

    An id that stands in a bag three times is in one sample.

    Args:
        ids: int64 `(n,)`.
        features: int32 `(p,)`, where p divides n: key i is `(features[i % p], ids[i])`.
            Feature -1 stands for an absent key.
        samples: int32 `(n,)`. The sample that each key is in.

    Returns:
        int32 `(n,)`: 1 for the first of equal keys in a sample, 0 for the others and
        for absent keys.

    Raises:
        tf.errors.InvalidArgumentError: If a feature is below -1, p does not divide n,
            or there is not one sample for each id.

    Example:

    >>> ids = tf.constant([7, 7, 5, 7], tf.int64)
    >>> sample_counts(ids, tf.constant([0]), tf.constant([0, 0, 0, 1])).numpy().tolist()
    [1, 0, 1, 1]
    """
    return library.load().tfctr_sample_counts(ids, features, samples)
