"""`KeyedRows`: what trains rows needs of the tables they lie in."""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_layers.expiry import Expiry
from tfctr_ops import Rows

# Of a whole row, behind its weights and slots: the feature, how many updates it has
# seen, and the last of them, int32 whose bits stand in the place of a float32.
NUM_COUNTERS = 3


class DistinctKeys(NamedTuple):
    """Keys of which no two are equal.

    Attributes:
        ids: int64 `(n,)`.
        features: int32 `(n,)`.
        words: int64 `(n,)`. What `to_words` makes of them, if that is known.
        counts: int32 `(n,)`. How many samples have each, for the clipping of gradients;
            `(0,)` or nothing where that is not known.
    """

    ids: tf.Tensor
    features: tf.Tensor
    words: tf.Tensor | None = None
    counts: tf.Tensor | None = None


class FoundRows(NamedTuple):
    """Rows of distinct keys; those that do not exist hold nothing of use.

    Attributes:
        values: float32 `(n, num_floats + NUM_COUNTERS)`: weights, then slots; the
            counters are of no use, those of the next two are right.
        counts: int32 `(n,)`. How many updates each row has seen.
        last_steps: int32 `(n,)`. The last of them.
        exists: bool `(n,)`.
    """

    values: tf.Tensor
    counts: tf.Tensor
    last_steps: tf.Tensor
    exists: tf.Tensor


def whole_rows(
    features: tf.Tensor,
    values: Sequence[tf.Tensor],
    counts: tf.Tensor,
    last_steps: tf.Tensor,
) -> tf.Tensor:
    """Returns rows with their counters, float32 `(n, num_floats + NUM_COUNTERS)`.

    Args:
        features: int32 `(n,)`.
        values: float32 tensors of `n` rows that stand side by side, together
            `num_floats` wide: weights, then slots.
        counts: int32 `(n,)`; see `FoundRows`.
        last_steps: int32 `(n,)`; see `FoundRows`.
    """
    counters = tf.stack([features, counts, last_steps], axis=1)
    return tf.concat([*values, tf.bitcast(counters, tf.float32)], axis=1)


def counters_of(rows: tf.Tensor) -> list[tf.Tensor]:
    """Returns features, counts and last steps of whole rows, each int32 `(n,)`."""
    counters: list[tf.Tensor] = tf.unstack(
        tf.bitcast(rows[:, -NUM_COUNTERS:], tf.int32), num=NUM_COUNTERS, axis=1
    )
    return counters


def nothing() -> tf.Tensor:
    """Does nothing, as a branch of `tf.cond`."""
    return tf.constant(True)


class KeyedRows(abc.ABC):
    """Whole rows by distinct keys. A row exists once it was put there."""

    # Weights and slots of a row.
    num_floats: int

    @abc.abstractmethod
    def find(self, keys: DistinctKeys, to_train: bool = False) -> FoundRows:
        """Finds rows.

        Args:
            keys: `DistinctKeys`.
            to_train: Boolean. Whether an update follows, for which room is made now:
                if there is none, nothing has moved yet.

        Raises:
            tf.errors.InvalidArgumentError: If the row of another key is in the way.
        """

    @abc.abstractmethod
    def upsert(self, keys: DistinctKeys, rows: tf.Tensor) -> None:
        """Sets rows, inserting those that do not exist.

        Args:
            keys: `DistinctKeys`.
            rows: float32 `(n, num_floats + NUM_COUNTERS)`, as of `whole_rows`.
        """

    @abc.abstractmethod
    def remove(self, keys: DistinctKeys) -> None:
        """Removes rows; those that do not exist are passed over."""

    @abc.abstractmethod
    def expire(
        self, expiry: Expiry, dim: int, seeds: tf.Tensor, step: tf.Tensor
    ) -> tf.Tensor:
        """Removes rows by the rule; returns how many, an int64 scalar.

        Args:
            expiry: `Expiry`.
            dim: Integer. How many of the values are weights.
            seeds: int64 `(num_features,)`, which settle who leaves first of equals.
            step: int64 scalar. How many updates the table has seen.
        """

    @abc.abstractmethod
    def export(self) -> Rows:
        """Returns all rows, in any order."""

    @abc.abstractmethod
    def replace(self, rows: Rows, step: int) -> None:
        """Replaces all rows by those after `step` updates."""

    @abc.abstractmethod
    def stats(self) -> dict[str, int]:
        """Returns what is to be told of the rows besides their number."""
