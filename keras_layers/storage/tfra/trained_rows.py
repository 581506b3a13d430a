"""`TrainedRows`: fused rows, and what training does to them."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import tensorflow as tf

from keras_layers.expiry import Expiry
from keras_layers.storage.tfra.initial_rows import initial_weights
from keras_layers.storage.tfra.keyed_rows import (
    NUM_COUNTERS,
    DistinctKeys,
    FoundRows,
    KeyedRows,
    whole_rows,
)
from keras_layers.storage.tfra.occurrences import is_gpu, sums_of, weights_of
from keras_layers.storage.tfra.row_maths import (
    clip_gradients,
    initial_slots,
    update_rows,
)
from keras_layers.table_config import TableConfig
from tfctr_ops import Rows, distinct_keys, update_fused_rows


class TrainedRows:
    """Makes, updates and removes the rows of distinct keys.

    Rows exist once they were updated or written: looking them up makes none.

    Args:
        config: `TableConfig`.
        feature_seeds: Integers of 64 bits, one per feature.
        rows: `KeyedRows`, empty.
        device: String. Where rows are computed.
        count_rows: Asks how many rows there are, an int64 scalar, of rows that also
            leave by themselves. `None` means that these never do.
    """

    def __init__(
        self,
        config: TableConfig,
        feature_seeds: Sequence[int],
        rows: KeyedRows,
        device: str,
        count_rows: Callable[[], tf.Tensor] | None = None,
    ) -> None:
        self._config = config
        self._rows = rows
        self._device = device
        self._count_rows = count_rows
        self._num_features = len(feature_seeds)
        self._rule = config.sparse_optimizer()
        self._law = config.row_initializer()
        self._clips = self._rule.clip_ratio is not None
        self._per_row = self._rule.bias_correction == "row"
        # A function, since eager ops and optimized graphs round differently.
        self._move_by_ops = tf.function(
            self._move,
            input_signature=[
                tf.TensorSpec([None, rows.num_floats + NUM_COUNTERS]),
                tf.TensorSpec([None, config.dim]),
                tf.TensorSpec([None], tf.int32),
                tf.TensorSpec([]),
                tf.TensorSpec([None, 1] if self._per_row else [], tf.int64),
            ],
            autograph=False,
        )
        # A variable, and no constant of graphs: a restored snapshot brings its own.
        self._seeds = tf.Variable(_signed(feature_seeds), trainable=False)
        # Rows that came, less those that were removed.
        self._balance = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._expired = tf.Variable(0, trainable=False, dtype=tf.int64)
        # Rows that were updated, and those whose gradient was clipped.
        self._updated = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._clipped = tf.Variable(0, trainable=False, dtype=tf.int64)

    @property
    def seeds(self) -> list[int]:
        """The seed of each feature."""
        seeds: list[int] = self._seeds.numpy().tolist()
        return seeds

    def counts_of(self, ids: tf.Tensor, counts: tf.Tensor | None) -> tf.Tensor:
        """Returns the counts of a lookup `(n,)`; `(0,)` if they are of no use."""
        if self._clips:
            return tf.ones_like(ids, tf.int32) if counts is None else counts
        return tf.zeros([0], tf.int32)

    def distinct(
        self, ids: tf.Tensor, features: tf.Tensor, counts: tf.Tensor | None = None
    ) -> tuple[DistinctKeys, tf.Tensor]:
        """Returns the distinct keys of a batch, and of each key its place there, or -1.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)`, where p divides n; -1 stands for an absent key.
            counts: int32 `(n,)`, of `counts_of`.
        """
        *keys, places = distinct_keys(
            ids, features, self._num_features, counts, has_counts=self._clips
        )
        return DistinctKeys(*keys), places

    def gather(self, rows: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Returns the weights `(n, dim)` of rows by their place; zeros where it is -1.

        Args:
            rows: float32 `(m, at least dim)`.
            places: int32 `(n,)`.
        """
        return weights_of(rows, places, self._config.dim, self._device)

    def find(self, keys: DistinctKeys) -> FoundRows:
        """Finds rows that exist."""
        return self._rows.find(keys)

    def find_or_make(self, keys: DistinctKeys) -> FoundRows:
        """Finds rows, and makes those that do not exist, without inserting them."""
        found = self._rows.find(keys, to_train=True)
        made: FoundRows = tf.cond(
            tf.reduce_all(found.exists),
            lambda: found,
            lambda: self._with_made(keys, found),
        )
        return made

    def _with_made(self, keys: DistinctKeys, found: FoundRows) -> FoundRows:
        """Returns the same rows, made where they do not exist."""
        new = tf.where(tf.logical_not(found.exists))
        place = tf.squeeze(new, axis=1)
        seeds = tf.gather(self._seeds, tf.gather(keys.features, place))
        ids = tf.gather(keys.ids, place)
        dim = self._config.dim
        weights = initial_weights(self._law, seeds, ids, dim)
        slots = tf.constant([initial_slots(self._rule, dim)], tf.float32)
        slots = tf.tile(slots, [tf.size(ids), 1])
        rest = tf.zeros([tf.size(ids), NUM_COUNTERS])
        values = tf.concat([weights, slots, rest], axis=1)
        return found._replace(
            values=tf.tensor_scatter_nd_update(found.values, new, values),
            counts=tf.where(found.exists, found.counts, 0),
            last_steps=tf.where(found.exists, found.last_steps, 0),
        )

    def update(
        self,
        keys: DistinctKeys,
        found: FoundRows,
        gradients: tf.Tensor,
        places: tf.Tensor,
        step: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> None:
        """Moves rows, and removes those that expire by it.

        Args:
            keys: `DistinctKeys` of `distinct`.
            found: Their rows, of `find_or_make`.
            gradients: float32 `(n, dim)`.
            places: int32 `(n,)`. Which of the keys each is of; -1 for none of them.
            step: int64 scalar. The number of this update.
            learning_rate: float32 scalar.
        """
        sums = sums_of(gradients, places, tf.size(keys.ids), self._device)
        moved, num_clipped = self._moved(keys, found, sums, step, learning_rate)
        self._updated.assign_add(tf.size(keys.ids, out_type=tf.int64))
        if self._clips:
            self._clipped.assign_add(num_clipped)
        self._upsert(keys, moved, found.exists)
        if self._config.expiry and self._config.expiry.every:
            is_due = tf.equal(step % self._config.expiry.every, 0)
            tf.cond(is_due, lambda: self.expire(step), lambda: tf.zeros([], tf.int64))

    def write(self, keys: DistinctKeys, weights: tf.Tensor) -> None:
        """Sets the weights `(n, dim)` of keys; slots and counters stay."""
        found = self.find_or_make(keys)
        values = [weights, found.values[:, self._config.dim : self._rows.num_floats]]
        rows = whole_rows(keys.features, values, found.counts, found.last_steps)
        self._upsert(keys, rows, found.exists)

    def remove(self, keys: DistinctKeys) -> tf.Tensor:
        """Removes rows and returns how many existed, an int64 scalar."""
        removed = tf.math.count_nonzero(self._rows.find(keys).exists)
        with tf.control_dependencies([removed]):
            self._rows.remove(keys)
        self._balance.assign_sub(removed)
        return removed

    def expire(self, step: tf.Tensor) -> tf.Tensor:
        """Removes rows by the table's expiry; returns how many, an int64 scalar."""
        expiry = cast(Expiry, self._config.expiry)  # Whoever calls has looked.
        removed = self._rows.expire(expiry, self._config.dim, self._seeds, step)
        self._balance.assign_sub(removed)
        self._expired.assign_add(removed)
        return removed

    def export(self) -> Rows:
        """Returns all rows."""
        return self._rows.export()

    def replace(self, rows: Rows, step: int, seeds: Sequence[int] = ()) -> None:
        """Replaces all rows by those after `step` updates and, if given, the seeds."""
        self._rows.replace(rows, step)
        self.were_replaced(len(rows.ids), seeds)

    def were_replaced(self, num_rows: int, seeds: Sequence[int]) -> None:
        """Notes that other rows, so many, are there, and their seeds if given."""
        if seeds:
            self._seeds.assign(_signed(seeds))
        self._balance.assign(num_rows)

    def size(self) -> int:
        """Returns how many rows there are."""
        return int(self._balance if self._count_rows is None else self._count_rows())

    def stats(self) -> dict[str, Any]:
        """Returns counts of rows, under the names of `EmbeddingStore.stats`."""
        size = self.size()
        updated, clipped = int(self._updated), int(self._clipped)
        return {
            "rows": size,
            "known_rows": size,
            # Those that left by themselves.
            "evicted_rows": int(self._balance) - size,
            "expired_rows": int(self._expired),
            "updated_rows": updated,
            "clipped_rows": clipped,
            "clipped_share": clipped / max(updated, 1),
            **self._rows.stats(),
        }

    def _moved(
        self,
        keys: DistinctKeys,
        found: FoundRows,
        sums: tf.Tensor,
        step: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns whole rows after an update, and how many gradients were clipped."""
        if not is_gpu(self._device):
            return update_fused_rows(
                self._rule,
                found.values,
                sums,
                keys.features,
                found.counts,
                keys.counts,
                learning_rate,
                step,
            )
        counts = found.counts + 1
        updates = tf.cast(counts[:, None], tf.int64) if self._per_row else step
        with tf.device(self._device):
            values, num_clipped = self._move_by_ops(
                found.values, sums, keys.counts, learning_rate, updates
            )
        last_steps = tf.fill(tf.shape(counts), tf.cast(step, tf.int32))
        return whole_rows(keys.features, values, counts, last_steps), num_clipped

    def _move(
        self,
        rows: tf.Tensor,
        gradients: tf.Tensor,
        counts: tf.Tensor,
        learning_rate: tf.Tensor,
        updates: tf.Tensor,
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns what `update_rows` does, and how many gradients were clipped."""
        num_clipped = tf.zeros([], tf.int64)
        if self._clips:
            weights = rows[:, : self._config.dim]
            gradients, num_clipped = clip_gradients(
                self._rule, weights, gradients, counts
            )
        samples = counts if self._clips else None
        moved = update_rows(
            self._rule, rows, gradients, learning_rate, updates, samples
        )
        return moved, num_clipped

    def _upsert(self, keys: DistinctKeys, rows: tf.Tensor, exists: tf.Tensor) -> None:
        new = tf.math.count_nonzero(tf.logical_not(exists))
        # First: they are there even if making room for them fails.
        balance = self._balance.assign_add(new, read_value=True)
        with tf.control_dependencies([balance]):
            self._rows.upsert(keys, rows)


def _signed(words: Sequence[int]) -> tf.Tensor:
    """Returns the int64 of the same 64 bits."""
    unsigned = tf.constant([word % 2**64 for word in words], tf.uint64)
    return tf.bitcast(unsigned, tf.int64)
