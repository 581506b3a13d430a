"""`route_keys`: the distinct keys of a batch, by the ranks that own them."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfctr_ops import library


class KeyRoutes(NamedTuple):
    """Where the keys of a batch belong.

    Attributes:
        messages: int64 `(m,)`. What to send to each owner, one behind the other, for
            `read_key_messages` to read there.
        sizes: int32 `(num_owners,)`. The size of each message: `num_features`, one more
            for each distinct key, and half of one for its count.
        num_keys: int32 `(num_owners,)`. Distinct keys in each message.
        places: int32 `(n,)`. Of each key of the batch its place among the distinct
            ones, which are counted over all messages; -1 for an absent key.

    Example:

    >>> KeyRoutes._fields
    ('messages', 'sizes', 'num_keys', 'places')
    """

    messages: tf.Tensor
    sizes: tf.Tensor
    num_keys: tf.Tensor
    places: tf.Tensor


class SentKeys(NamedTuple):
    """The keys of messages, those of the first sender first.

    Attributes:
        ids: int64 `(n,)`.
        features: int32 `(n,)`.
        num_keys: int32 `(num_senders,)`. How many each sender has sent.
        counts: int32 `(n,)`. How often each counts; `(0,)` if none were sent.

    Example:

    >>> SentKeys._fields
    ('ids', 'features', 'num_keys', 'counts')
    """

    ids: tf.Tensor
    features: tf.Tensor
    num_keys: tf.Tensor
    counts: tf.Tensor


def route_keys(
    ids: tf.Tensor,
    features: tf.Tensor,
    num_features: int | Sequence[int],
    num_owners: int,
    counts: tf.Tensor | None = None,
    sends_counts: bool = False,
) -> KeyRoutes:
    """Finds the distinct keys of a batch, and who owns them.

    The owner of a key depends on its id, on the number of its feature within its table,
    and on `num_owners` alone.

    Args:
        ids: int64 `(n,)`.
        features: int32 `(p,)`, where p divides n: key i is `(features[i % p], ids[i])`.
            Feature -1 stands for an absent key.
        num_features: Integer: how many the table has. Or integers, of several tables,
            whose features are numbered one table after the other.
        num_owners: Integer. How many ranks share the keys.
        counts: int32 `(n,)`, none negative. How often each key counts; those of equal
            keys are added. `None`: once.
        sends_counts: Boolean. Whether the messages tell the counts.

    Raises:
        tf.errors.InvalidArgumentError: If a feature is out of range, p does not divide
            n, or there is not one count for each id.

    Example:

    >>> ids = tf.constant([7, 5, 7, 5], tf.int64)
    >>> routes = route_keys(ids, tf.constant([0, 1]), num_features=2, num_owners=1)
    >>> routes.places.numpy().tolist(), routes.sizes.numpy().tolist()
    ([0, 1, 0, 1], [4])
    >>> keys = read_key_messages(routes.messages, routes.sizes, num_features=2)
    >>> keys.ids.numpy().tolist(), keys.features.numpy().tolist()
    ([7, 5], [0, 1])
    """
    counts = tf.zeros([0], tf.int32) if counts is None else counts
    tables = [num_features] if isinstance(num_features, int) else list(num_features)
    return KeyRoutes(
        *library.load().tfctr_route_keys(
            ids,
            features,
            counts,
            num_features=tables,
            num_owners=num_owners,
            sends_counts=sends_counts,
        )
    )


def read_key_messages(
    messages: tf.Tensor, sizes: tf.Tensor, num_features: int, has_counts: bool = False
) -> SentKeys:
    """Reads the keys of messages that `route_keys` made, on whichever rank.

    Args:
        messages: int64 `(m,)`. The messages, one behind the other.
        sizes: int32 `(num_senders,)`. Of each message.
        num_features: Integer, as the senders have over all tables.
        has_counts: Boolean. Whether the senders have sent counts.

    Raises:
        tf.errors.InvalidArgumentError: If these are no such messages.

    Example:

    >>> keys = read_key_messages(tf.constant([1, 2, 9, 8, 8], tf.int64), [5], 2)
    >>> keys.ids.numpy().tolist(), keys.features.numpy().tolist()
    ([9, 8, 8], [0, 1, 1])
    """
    return SentKeys(
        *library.load().tfctr_read_key_messages(
            messages, sizes, num_features=num_features, has_counts=has_counts
        )
    )
