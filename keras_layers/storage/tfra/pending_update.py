"""`PendingUpdate`: what the lookups of one step have reported so far."""

from typing import NamedTuple

import tensorflow as tf


class Gathered(NamedTuple):
    """The reports of one step, as if there had been one lookup.

    Attributes:
        ids: int64 `(n,)`.
        features: int32 `(n,)`.
        counts: int32 `(n,)`. How often each counts; `(0,)` where that is of no use.
        gradients: float32 `(n, dim)`.
        step: int64 scalar. The number of the update.
        learning_rate: float32 scalar.
    """

    ids: tf.Tensor
    features: tf.Tensor
    counts: tf.Tensor
    gradients: tf.Tensor
    step: tf.Tensor
    learning_rate: tf.Tensor


class PendingUpdate:
    """Holds gradients until the last lookup of the step has reported.

    Args:
        dim: Integer. Width of the gradients.
    """

    def __init__(self, dim: int) -> None:
        self._nothing = Gathered(
            tf.zeros([0], tf.int64),
            tf.zeros([0], tf.int32),
            tf.zeros([0], tf.int32),
            tf.zeros([0, dim]),
            tf.zeros([], tf.int64),
            tf.zeros([]),
        )
        shapes: tuple[list[int | None], ...] = (
            [None],
            [None],
            [None],
            [None, dim],
            [],
            [],
        )
        self._held = Gathered(
            *(
                tf.Variable(start, trainable=False, shape=shape)
                for start, shape in zip(self._nothing, shapes, strict=True)
            )
        )

    def is_empty(self) -> tf.Tensor:
        """Whether no lookup has reported since the last `take` or `drop`."""
        return tf.equal(self._held.step, 0)

    def add(self, report: Gathered) -> tf.Tensor:
        """Adds the report of one more lookup; returns when that is done."""
        # In front, since tapes ask the last lookup first: sums are then those of one
        # lookup of all, to the bit.
        return self._set(
            Gathered(
                tf.concat([report.ids, self._held.ids], 0),
                tf.concat([report.features, self._held.features], 0),
                tf.concat([report.counts, self._held.counts], 0),
                tf.concat([report.gradients, self._held.gradients], 0),
                report.step,
                report.learning_rate,
            )
        )

    def take(self) -> Gathered:
        """Returns what is held, and holds nothing more."""
        held = Gathered(*(tf.identity(column) for column in self._held))
        with tf.control_dependencies(held):
            self.drop()
        return held

    def drop(self) -> None:
        """Forgets what is held."""
        self._set(self._nothing)

    def _set(self, values: Gathered) -> tf.Tensor:
        for column, value in zip(self._held, values, strict=True):
            column.assign(value)
        return tf.greater(self._held.step, 0)
