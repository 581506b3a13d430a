"""`TfraTable`: the live table of a `TfraStorage`."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_layers.storage.storage import Counts, KeyPairs, SavedTable, Table, Vectors
from keras_layers.storage.tfra.keyed_rows import DistinctKeys, FoundRows, nothing
from keras_layers.storage.tfra.pending_update import Gathered, PendingUpdate
from keras_layers.storage.tfra.step_ledger import StepLedger, are_good
from keras_layers.storage.tfra.trained_rows import TrainedRows
from keras_layers.table_config import TableConfig
from tfctr_ops import EmbeddingStore, Rows, StoreConfig

# Autograph would take seconds, for a graph that it leaves as it is.
_as_it_is = tf.autograph.experimental.do_not_convert


class Ticket(NamedTuple):
    """What an update needs to know of its lookup.

    Attributes:
        report: The ledger's ticket.
        ids: int64 `(n,)`.
        features: int32 `(p,)`.
        counts: int32 `(n,)`. How often each key counts; `(0,)` where that is of no use.
        keys: The distinct keys.
        found: Their rows, new ones too.
        places: int32 `(n,)`. Of each key among the distinct ones; -1 if absent.
        version: int64 scalar. Of the table's rows, when they were found.
        imports: int64 scalar. How often all rows had been replaced.
    """

    report: tf.Tensor
    ids: tf.Tensor
    features: tf.Tensor
    counts: tf.Tensor
    keys: DistinctKeys
    found: FoundRows
    places: tf.Tensor
    version: tf.Tensor
    imports: tf.Tensor


class TfraTable(Table):
    """A table in TFRA's tables; see `Table`. One thread at a time may use it.

    A step with one lookup makes one find and one insert. A step with several finds the
    rows of all of them once more, before its one insert.

    Args:
        config: `TableConfig`.
        rows: `TrainedRows`, empty.
        row_bytes: Integer. What a row takes in memory.
    """

    def __init__(self, config: TableConfig, rows: TrainedRows, row_bytes: int) -> None:
        self._config = config
        self._rows = rows
        self._row_bytes = row_bytes
        self._num_features = len(rows.seeds)
        self._default_row = config.default_row or (0.0,) * config.dim
        self._ledger = StepLedger(config.name, config.bad_gradients == "skip")
        self._pending = PendingUpdate(config.dim)
        # A function, since all that looks at rows calls it: one graph is enough.
        self._apply_pending = tf.function(self._move_by_pending, autograph=False)
        # Lookups that have not reported. Too many after one was dropped: then an update
        # waits for whoever looks at the rows next, which makes no difference.
        self._open = _counter()
        self._version, self._imports = _counter(), _counter()
        self._drops_step = tf.Variable(False, trainable=False)
        self._saving: tuple[str, str, Rows, int] | None = None

    @_as_it_is
    def lookup(
        self,
        ids: tf.Tensor,
        features: tf.Tensor,
        expected_step: tf.Tensor,
        counts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Ticket]:
        self.flush()
        report = self._ledger.open_ticket(expected_step)
        counts = self._rows.counts_of(ids, counts)
        keys, places = self._rows.distinct(ids, features, counts)
        with tf.control_dependencies([report]):
            found = self._rows.find_or_make(keys)
            self._open.assign_add(1)
            versions = (self._version.read_value(), self._imports.read_value())
        with tf.control_dependencies([found.values]):
            # An update must not count before the rows are there.
            report = tf.identity(report)
        ticket = Ticket(report, ids, features, counts, keys, found, places, *versions)
        return self._rows.gather(found.values, places), ticket

    @_as_it_is
    def update(
        self,
        ticket: Ticket,
        gradients: tf.Tensor,
        learning_rate: tf.Tensor,
        is_good: tf.Tensor | None = None,
    ) -> tf.Tensor:
        gradients = tf.ensure_shape(gradients, [None, self._config.dim])
        rate = tf.cast(learning_rate, tf.float32)
        is_good = are_good(gradients) & (True if is_good is None else is_good)
        is_valid = tf.equal(ticket.imports, self._imports)
        # Before the ledger speaks: its error would leave the rest undone.
        dropped = tf.cond(is_valid & ~is_good, self._drop_step, nothing)
        with tf.control_dependencies([dropped]):
            is_last = tf.equal(self._open.assign_sub(1, read_value=True), 0)
        with tf.control_dependencies([is_last]):
            step = self._ledger.report(ticket.report, is_good, rate)
        with tf.control_dependencies([step]):
            counts = is_valid & ~self._drops_step
            is_alone = is_last & self._pending.is_empty()
            is_fresh = tf.equal(ticket.version, self._version)

        def move() -> tf.Tensor:
            keys, found, places = ticket.keys, ticket.found, ticket.places
            self._rows.update(keys, found, gradients, places, step, rate)
            return tf.constant(True)

        def gather() -> tf.Tensor:
            times = tf.size(ticket.ids) // tf.maximum(tf.size(ticket.features), 1)
            features = tf.tile(ticket.features, [times])
            report = Gathered(
                ticket.ids, features, ticket.counts, gradients, step, rate
            )
            added = tf.cond(counts, lambda: self._pending.add(report), nothing)
            with tf.control_dependencies([added]):
                return tf.cond(is_last, self.flush, nothing)

        done = tf.cond(counts & is_alone & is_fresh, move, gather)
        with tf.control_dependencies([done]):
            return tf.identity(step)

    @_as_it_is
    def read(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tf.Tensor:
        self.flush()
        checked = self._ledger.check_step(expected_step)
        keys, places = self._rows.distinct(ids, features)
        with tf.control_dependencies([checked]):
            found = self._rows.find(keys)
        weights = tf.where(
            found.exists[:, None],
            found.values[:, : self._config.dim],
            tf.constant(self._default_row),
        )
        return self._rows.gather(weights, places)

    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        return None if tf.executing_eagerly() else tf.no_op()

    @_as_it_is
    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        self.flush()
        self._ledger.check_weights(weights)
        keys, places = self._rows.distinct(ids, features)
        last = tf.math.unsorted_segment_max(
            tf.range(tf.size(ids)), places, tf.size(keys.ids)
        )
        self._rows.write(keys, tf.gather(weights, last))
        self._version.assign_add(1)

    @_as_it_is
    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        self.flush()
        self._version.assign_add(1)
        keys, _ = self._rows.distinct(ids, features)
        return self._rows.remove(keys)

    def expire(self) -> int:
        self.flush()
        if self._config.expiry is None:
            self._ledger.refuse_expiry()
        self._version.assign_add(1)
        step = self._ledger.stats()["step"]
        return int(self._rows.expire(tf.constant(step, tf.int64)))

    def export(self, batch_size: int) -> Iterator[tuple[KeyPairs, Vectors]]:
        rows = self.save_rows()
        features = rows.features.numpy().astype(np.int64)
        keys = np.stack([features, rows.ids.numpy()], axis=1)
        vectors = rows.values.numpy()[:, : self._config.dim]
        for start in range(0, len(keys), batch_size):
            yield keys[start : start + batch_size], vectors[start : start + batch_size]

    def save_rows(self) -> Rows:
        self.flush()
        return self._rows.export()

    def restore_rows(self, rows: Rows, step: int) -> None:
        self._replace(rows, step)

    def save_admission(self) -> Counts:
        return np.zeros(0, np.uint8)

    def restore_admission(self, counts: Counts, features: Sequence[int]) -> None:
        """Does nothing: these tables have no admission."""

    def begin_save(self, directory: str, scratch: str) -> None:
        rows = self.save_rows()
        self._saving = (directory, scratch, rows, self._ledger.stats()["step"])

    def finish_save(self, metadata: str) -> dict[str, int]:
        store = self._scratch_store()
        if self._saving is not None:
            (directory, scratch, rows, step), self._saving = self._saving, None
            store.import_rows(rows, step)
            store.begin_save(directory, scratch)
        return store.finish_save(metadata)  # Without a beginning, says so.

    def restore(self, saved: SavedTable) -> None:
        store = self._scratch_store()
        saved.restore_to(store)
        self._replace(store.export_rows(), store.stats()["step"], saved.seeds)

    def size(self) -> int:
        self.flush()
        return self._rows.size()

    def stats(self) -> dict[str, Any]:
        self.flush()
        counts = self._ledger.stats() | self._rows.stats()
        memory_bytes = counts["rows"] * self._row_bytes
        return counts | {"row_bytes": self._row_bytes, "memory_bytes": memory_bytes}

    def flush(self) -> tf.Tensor:
        """Moves rows by what lookups have reported, if that has not been done."""
        self._drops_step.assign(False)
        self._ledger.check_step(-1)  # Whose open step ends as well.
        return tf.cond(self._pending.is_empty(), nothing, self._apply_pending)

    def _move_by_pending(self) -> tf.Tensor:
        self._open.assign(0)  # What has not reported by now is of no step.
        held = self._pending.take()
        keys, places = self._rows.distinct(held.ids, held.features, held.counts)
        found = self._rows.find_or_make(keys)
        self._version.assign_add(1)
        self._rows.update(
            keys, found, held.gradients, places, held.step, held.learning_rate
        )
        return tf.constant(True)

    def _drop_step(self) -> tf.Tensor:
        self._pending.drop()
        return self._drops_step.assign(True, read_value=True)

    def _replace(self, rows: Rows, step: int, seeds: Sequence[int] = ()) -> None:
        rows = Rows(*(tf.convert_to_tensor(column) for column in rows))
        self._ledger.replace_rows(rows, step, self._num_features)
        self._rows.replace(rows, step, seeds)
        self._forget_lookups()

    def _forget_lookups(self) -> None:
        """After all rows were replaced: what was looked up before moves nothing."""
        self._pending.drop()
        self._drops_step.assign(False)
        self._version.assign_add(1)
        self._imports.assign_add(1)
        self._saving = None

    def _scratch_store(self) -> EmbeddingStore:
        """A store that reads and writes snapshots of such tables."""
        return EmbeddingStore(
            StoreConfig(
                table=self._config.name,
                dim=self._config.dim,
                optimizer=self._config.sparse_optimizer(),
                initializer=self._config.row_initializer(),
                feature_seeds=tuple(self._rows.seeds),
                default_row=self._default_row,
            )
        )


def _counter() -> tf.Variable:
    return tf.Variable(0, trainable=False, dtype=tf.int64)
