"""`StepLedger`: the protocol of a table's steps, without its rows."""

import tensorflow as tf

from tfctr_ops import EmbeddingStore, RowInitializer, Rows, SparseOptimizer, StoreConfig
from tfctr_ops.sparse_optimizer import GRADIENT_BOUND


class StepLedger:
    """Counts updates, and refuses what an `EmbeddingStore` refuses, in its words.

    It is an `EmbeddingStore` of one float per key that is only ever asked for an absent
    key, so tickets that are used twice, a wrong `expected_step`, bad gradients and bad
    learning rates are the same errors for every table.

    Args:
        table: String. Name of the table, for messages.
        skip_bad_gradients: Boolean. Whether such a step is skipped and counted.
    """

    def __init__(self, table: str, skip_bad_gradients: bool) -> None:
        self._store = EmbeddingStore(
            StoreConfig(
                table=table,
                dim=1,
                optimizer=SparseOptimizer("sgd"),
                initializer=RowInitializer("constant"),
                feature_seeds=(0,),
                default_row=(0.0,),
                skip_bad_gradients=skip_bad_gradients,
                num_threads=1,
            )
        )
        self._id = tf.constant([0], tf.int64)
        self._feature = tf.constant([-1], tf.int32)

    def open_ticket(self, expected_step: tf.Tensor) -> tf.Tensor:
        """Returns the ticket of a lookup."""
        _, ticket = self._store.lookup(self._id, self._feature, expected_step)
        return ticket

    def check_step(self, expected_step: tf.Tensor | int) -> tf.Tensor:
        """Refuses a wrong belief about the step."""
        return self._store.read(self._id, self._feature, expected_step)

    def report(
        self, ticket: tf.Tensor, is_good: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Tensor:
        """Takes the report of a ticket; returns the number of updates."""
        return self._store.update(ticket, tf.zeros([1, 1]), learning_rate, is_good)

    def check_weights(self, weights: tf.Tensor) -> None:
        """Refuses weights that are not finite."""
        is_good = tf.reduce_all(tf.math.is_finite(weights))
        sample = tf.where(is_good, 0.0, float("nan"))
        self._store.write(self._id, self._feature, tf.reshape(sample, [1, 1]))

    def refuse_expiry(self) -> None:
        """Says that the table was made without a rule of expiry."""
        self._store.expire()

    def replace_rows(self, rows: Rows, step: int, num_features: int) -> None:
        """Sets how many updates there were; tickets of before move nothing.

        Refuses rows that no table gives, and then has changed nothing.
        """
        inside = (rows.features >= 0) & (rows.features < num_features)
        updates = (rows.last_steps >= 0) & (rows.last_steps <= step)
        are_good = tf.reduce_all(inside & updates & (rows.counts >= 0))
        are_good &= tf.reduce_all(tf.math.is_finite(rows.values))
        none = tf.constant([], tf.int64)
        # A row with a negative count, and so refused, unless all are good.
        bad = none if are_good else tf.constant([-1], tf.int64)
        features, values = tf.zeros_like(bad, tf.int32), tf.zeros([len(bad), 1])
        self._store.import_rows(Rows(bad, features, values, bad + 1, bad), step)

    def set_step(self, step: int) -> None:
        """Sets how many updates there were; tickets of before move nothing."""
        none = tf.constant([], tf.int64)
        rows = Rows(none, tf.zeros([0], tf.int32), tf.zeros([0, 1]), none, none)
        self._store.import_rows(rows, step)

    def stats(self) -> dict[str, int]:
        """Returns all counts of a table, those of rows being zero."""
        counts = self._store.stats()
        return counts | {"memory_bytes": 0, "row_bytes": 0}


def are_good(gradients: tf.Tensor) -> tf.Tensor:
    """Whether gradients are neither NaN nor infinite nor beyond 1e12."""
    # Half the sum of squares, in one pass, is beyond this if any of them is.
    return tf.cond(
        tf.nn.l2_loss(gradients) < 0.49 * GRADIENT_BOUND**2,
        lambda: tf.constant(True),
        lambda: tf.reduce_all(tf.abs(gradients) <= GRADIENT_BOUND),
    )
