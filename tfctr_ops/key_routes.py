"""`route_keys`: the distinct keys of a batch, by the ranks that own them."""

from typing import NamedTuple

import tensorflow as tf

from tfctr_ops import library


class KeyRoutes(NamedTuple):
    """Where the keys of a batch belong.

    Attributes:
        ids: int64 `(u,)`. The ids of the distinct keys, by owner, and by feature for
            each owner.
        counts: int32 `(num_owners, num_features)`. How many of them each pair has.
        places: int32 `(n,)`. Of each key of the batch, its place in `ids`; -1 for an
            absent key.

    Example:

    >>> KeyRoutes._fields
    ('ids', 'counts', 'places')
    """

    ids: tf.Tensor
    counts: tf.Tensor
    places: tf.Tensor


def route_keys(
    ids: tf.Tensor, features: tf.Tensor, num_features: int, num_owners: int
) -> KeyRoutes:
    """Finds the distinct keys of a batch, and who owns them.

    The owner of a key depends on the key and on `num_owners` alone.

    Args:
        ids: int64 `(n,)`.
        features: int32 `(p,)`, where p divides n: key i is `(features[i % p], ids[i])`.
            Feature -1 stands for an absent key.
        num_features: Integer. Features lie below it.
        num_owners: Integer. How many ranks share the keys.

    Raises:
        tf.errors.InvalidArgumentError: If a feature is out of range, or p does not
            divide n.

    Example:

    >>> ids = tf.constant([7, 5, 7, 5], tf.int64)
    >>> routes = route_keys(ids, tf.constant([0, 1]), num_features=2, num_owners=1)
    >>> routes.ids.numpy().tolist(), routes.counts.numpy().tolist()
    ([7, 5], [[1, 1]])
    >>> routes.places.numpy().tolist()
    [0, 1, 0, 1]
    """
    return KeyRoutes(
        *library.load().tfctr_route_keys(
            ids, features, num_features=num_features, num_owners=num_owners
        )
    )


def features_of(counts: tf.Tensor) -> tf.Tensor:
    """Returns the features, int32 `(u,)`, of keys that come in the order of `counts`.

    Args:
        counts: int32 `(m, num_features)`.

    Example:

    >>> features_of(tf.constant([[2, 1], [0, 1]])).numpy().tolist()
    [0, 0, 1, 1]
    """
    owners, num_features = tf.unstack(tf.shape(counts))
    features = tf.tile(tf.range(num_features), [owners])
    return tf.repeat(features, tf.reshape(counts, [-1]))
