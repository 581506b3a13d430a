"""`HybridRows`: rows in a table of TFRA, and below it in an embedding store."""

from collections.abc import Sequence

import tensorflow as tf

from keras_layers.storage.tfra.fused_rows import (
    NUM_COUNTERS,
    DistinctKeys,
    FoundRows,
    FusedRows,
)
from tfctr_ops import EmbeddingStore, Rows

# When the hot tier is over its capacity, this share of it leaves at once: choosing who
# leaves looks at all of its rows.
_LEAVES = 0.125


class HybridRows(FusedRows):
    """Rows in two tiers, with the methods of one.

    A row that is trained is in the hot tier. When that is above its capacity, the rows
    whose last update is the longest ago move to the cold one, and come back with their
    next. Of a row in both tiers the hot one is right.

    Args:
        hot: `FusedRows`, empty.
        cold: `EmbeddingStore` of rows with as many floats, empty.
        capacity: Integer. How many rows the hot tier has between two steps.
    """

    def __init__(self, hot: FusedRows, cold: EmbeddingStore, capacity: int) -> None:
        # Not that of `FusedRows`: the table of TFRA is the hot tier's.
        self.num_floats = hot.num_floats
        self._hot = hot
        self._cold = cold
        self._capacity = capacity
        # The cold tier has all hot rows as they were after this update.
        self._copied_at = tf.Variable(-1, trainable=False, dtype=tf.int64)
        self._demoted = tf.Variable(0, trainable=False, dtype=tf.int64)

    @property
    def cold(self) -> EmbeddingStore:
        """The cold tier."""
        return self._cold

    def find(self, keys: DistinctKeys) -> FoundRows:
        found = self._hot.find(keys)
        missing = tf.where(tf.logical_not(found.exists))

        def find_cold() -> FoundRows:
            places = tf.squeeze(missing, axis=1)
            ids, features = (
                tf.gather(keys.ids, places),
                tf.gather(keys.features, places),
            )
            rows, known = self._cold.read_rows(ids, features)
            cold = FoundRows(
                tf.pad(rows.values, [[0, 0], [0, NUM_COUNTERS]]),
                tf.cast(rows.counts, tf.int32),
                tf.cast(rows.last_steps, tf.int32),
                known,
            )
            return FoundRows(
                *(
                    tf.tensor_scatter_nd_update(of_hot, missing, of_cold)
                    for of_hot, of_cold in zip(found, cold, strict=True)
                )
            )

        rows: FoundRows = tf.cond(tf.size(missing) > 0, find_cold, lambda: found)
        return rows

    def upsert(
        self,
        keys: DistinctKeys,
        values: Sequence[tf.Tensor],
        counts: tf.Tensor,
        last_steps: tf.Tensor,
    ) -> None:
        self._hot.upsert(keys, values, counts, last_steps)
        # Rows that are set by hand keep their last update, of before the last copy.
        oldest = tf.reduce_min(tf.cast(last_steps, tf.int64))
        self._copied_at.assign(tf.minimum(self._copied_at, oldest - 1))
        tf.cond(self._hot.size() > self._capacity, self._demote, _nothing)

    def remove(self, keys: DistinctKeys) -> None:
        self._hot.remove(keys)
        self._cold.remove(keys.ids, keys.features)

    def export(self) -> Rows:
        self.copy_down()
        return self._cold.export_rows()

    def forget_hot(self) -> None:
        """Empties the hot tier: the cold one has all rows."""
        self._hot.clear()
        self._copied_at.assign(-1)

    def copy_down(self, step: tf.Tensor | int = 0) -> tf.Operation | None:
        """Brings the cold tier up to date; the hot rows stay where they are.

        Args:
            step: int64 scalar. How many updates the table has seen.

        Returns:
            In a graph, the operation after which that is so; else nothing.
        """
        rows = self._hot.export()
        newer = tf.where(rows.last_steps > self._copied_at)[:, 0]
        copied = self._put(_some(rows, newer), step)
        self._copied_at.assign(tf.maximum(self._copied_at, _last_step(rows)))
        return copied

    def stats(self) -> dict[str, int]:
        """Returns how many rows are hot, and how many have left the hot tier so far."""
        return {"hot_rows": int(self._hot.size()), "demoted_rows": int(self._demoted)}

    def _demote(self) -> tf.Tensor:
        rows = self._hot.export()
        num_staying = int(self._capacity * (1.0 - _LEAVES))
        # Of rows with the same last update, those with fewer in all.
        ages = rows.last_steps * 2**32 + rows.counts
        leaving = _some(rows, tf.argsort(ages)[: tf.size(ages) - num_staying])
        put = self._put(leaving, 0)
        # Only then: whatever fails, a row is in one of the tiers.
        with tf.control_dependencies([] if put is None else [put]):
            self._hot.remove(DistinctKeys(leaving.ids, leaving.features))
        self._demoted.assign_add(tf.size(leaving.ids, out_type=tf.int64))
        return tf.constant(True)

    def _put(self, rows: Rows, step: tf.Tensor | int) -> tf.Operation | None:
        last = _last_step(rows)
        return self._cold.put_rows(rows, tf.maximum(last, tf.cast(step, tf.int64)))


def _some(rows: Rows, places: tf.Tensor) -> Rows:
    return Rows(*(tf.gather(column, places) for column in rows))


def _last_step(rows: Rows) -> tf.Tensor:
    """Returns the last update of all rows; 0 if there are none."""
    return tf.reduce_max(tf.pad(rows.last_steps, [[1, 0]]))


def _nothing() -> tf.Tensor:
    return tf.constant(True)
