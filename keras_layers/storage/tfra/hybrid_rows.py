"""`HybridRows`: rows in a table of TFRA, and below it in an embedding store."""

import tensorflow as tf

from keras_layers.expiry import Expiry
from keras_layers.storage.tfra.fused_rows import FusedRows
from keras_layers.storage.tfra.keyed_rows import (
    NUM_COUNTERS,
    DistinctKeys,
    FoundRows,
    KeyedRows,
    counters_of,
    nothing,
)
from tfctr_ops import EmbeddingStore, Rows

# When the hot tier is over its capacity, this share of it leaves at once: choosing who
# leaves looks at all of its rows.
_LEAVES = 0.125


class HybridRows(KeyedRows):
    """Rows in two tiers.

    A row that is trained is in the hot tier. When that is above its capacity, the rows
    whose last update is the longest ago move to the cold one, and come back with their
    next. Of a row in both tiers the hot one is right.

    Args:
        hot: `FusedRows`, empty.
        cold: `EmbeddingStore` of rows with as many floats, empty.
        capacity: Integer. How many rows the hot tier has between two steps.
        most: Integer. How many it may ever have, at least `capacity`: beyond, it would
            lose some. `None` means no limit.
    """

    def __init__(
        self, hot: FusedRows, cold: EmbeddingStore, capacity: int, most: int | None
    ) -> None:
        self.num_floats = hot.num_floats
        self._hot = hot
        self._cold = cold
        self._capacity = capacity
        self._most = most
        # The cold tier has all hot rows as they were after this update.
        self._copied_at = tf.Variable(-1, trainable=False, dtype=tf.int64)
        self._demoted = tf.Variable(0, trainable=False, dtype=tf.int64)

    @property
    def cold(self) -> EmbeddingStore:
        """The cold tier."""
        return self._cold

    def find(self, keys: DistinctKeys, to_train: bool = False) -> FoundRows:
        found = self._hot.find(keys)
        missing = tf.where(tf.logical_not(found.exists))
        if to_train:
            with tf.control_dependencies([self._make_room(tf.shape(missing)[0])]):
                found = FoundRows(*(tf.identity(column) for column in found))

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

    def upsert(self, keys: DistinctKeys, rows: tf.Tensor) -> None:
        _, counts, last_steps = counters_of(rows)

        def put_hot() -> tf.Tensor:
            with tf.control_dependencies([self._keep_below_most(tf.size(keys.ids))]):
                self._hot.upsert(keys, rows)
            # Rows that are set by hand keep their last update, of before the last copy.
            oldest = tf.reduce_min(tf.cast(last_steps, tf.int64))
            self._copied_at.assign(tf.minimum(self._copied_at, oldest - 1))
            # Of a batch beyond the capacity, or whose own rows had to make room.
            return self._make_room(tf.constant(0))

        def put_cold() -> tf.Tensor:
            steps, updates = tf.cast(last_steps, tf.int64), tf.cast(counts, tf.int64)
            values = rows[:, : self.num_floats]
            leaving = Rows(keys.ids, keys.features, values, steps, updates)
            return self._move_down(leaving)

        if self._most is None:
            put_hot()
        else:
            tf.cond(tf.size(keys.ids) > self._most, put_cold, put_hot)

    def remove(self, keys: DistinctKeys) -> None:
        self._hot.remove(keys)
        self._cold.remove(keys.ids, keys.features)

    def export(self) -> Rows:
        self.copy_down()
        return self._cold.export_rows()

    def replace(self, rows: Rows, step: int) -> None:
        self._cold.import_rows(rows, step)
        self.forget_hot()

    def forget_hot(self) -> None:
        """Empties the hot tier: the cold one has all rows."""
        self._hot.clear()
        self._copied_at.assign(-1)

    def expire(
        self, expiry: Expiry, dim: int, seeds: tf.Tensor, step: tf.Tensor
    ) -> tf.Tensor:
        # The cold tier has the rule and the seeds.
        copied = self.copy_down(step)
        with tf.control_dependencies([] if copied is None else [copied]):
            removed = self._cold.expire()
        # Which of them were hot, the cold tier does not tell.
        return tf.cond(removed > 0, lambda: self._forgotten(removed), lambda: removed)

    def copy_down(self, step: tf.Tensor | int = 0) -> tf.Operation | None:
        """Brings the cold tier up to date; the hot rows stay where they are.

        Args:
            step: int64 scalar. How many updates the table has seen.

        Returns:
            In a graph, the operation after which that is so; else nothing.
        """
        rows = self._hot.export()
        newer = tf.where(rows.last_steps > self._copied_at)[:, 0]
        copied = self._put(_at(rows, newer), step)
        with tf.control_dependencies([] if copied is None else [copied]):
            self._copied_at.assign(tf.maximum(self._copied_at, _last_step(rows)))
        return copied

    def stats(self) -> dict[str, int]:
        # How many rows are hot, and how many have left the hot tier so far.
        return {"hot_rows": int(self._hot.size()), "demoted_rows": int(self._demoted)}

    def _forgotten(self, removed: tf.Tensor) -> tf.Tensor:
        self.forget_hot()
        return removed

    def _make_room(self, num_rows: tf.Tensor) -> tf.Tensor:
        """Demotes rows if so many more would be above the capacity."""
        staying = tf.minimum(
            int(self._capacity * (1.0 - _LEAVES)),
            tf.maximum(self._capacity - num_rows, 0),
        )
        is_over = self._hot.size() + tf.cast(num_rows, tf.int64) > self._capacity
        return tf.cond(is_over, lambda: self._demote(staying), nothing)

    def _keep_below_most(self, num_rows: tf.Tensor) -> tf.Tensor:
        """Demotes rows of a hot tier that would lose some of those that come."""
        if self._most is None:
            return nothing()
        staying = tf.maximum(self._most - num_rows, 0)
        is_over = self._hot.size() > tf.cast(staying, tf.int64)
        return tf.cond(is_over, lambda: self._demote(staying), nothing)

    def _demote(self, num_staying: tf.Tensor | int) -> tf.Tensor:
        """Moves the rows whose last update is the longest ago to the cold tier."""
        rows = self._hot.export()
        # Of rows with the same last update, those with fewer in all.
        ages = rows.last_steps * 2**32 + rows.counts
        num_leaving = tf.maximum(tf.size(ages) - num_staying, 0)
        leaving = _at(rows, tf.argsort(ages)[:num_leaving])
        self._demoted.assign_add(tf.size(leaving.ids, out_type=tf.int64))
        return self._move_down(leaving)

    def _move_down(self, rows: Rows) -> tf.Tensor:
        put = self._put(rows, 0)
        # Only then: whatever fails, a row is in one of the tiers.
        with tf.control_dependencies([] if put is None else [put]):
            self._hot.remove(DistinctKeys(rows.ids, rows.features))
            return tf.constant(True)

    def _put(self, rows: Rows, step: tf.Tensor | int) -> tf.Operation | None:
        last = _last_step(rows)
        return self._cold.put_rows(rows, tf.maximum(last, tf.cast(step, tf.int64)))


def _at(rows: Rows, places: tf.Tensor) -> Rows:
    return Rows(*(tf.gather(column, places) for column in rows))


def _last_step(rows: Rows) -> tf.Tensor:
    """Returns the last update of all rows; 0 if there are none."""
    return tf.reduce_max(tf.pad(rows.last_steps, [[1, 0]]))
