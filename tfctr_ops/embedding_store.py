"""`EmbeddingStore`: the Python handle of the native embedding store."""

import os
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfctr_ops import library
from tfctr_ops.eager_call import call_eagerly
from tfctr_ops.store_config import MemoryBudget, StoreConfig, signed


class Rows(NamedTuple):
    """Whole rows, column by column.

    Attributes:
        ids: int64 `(n,)`.
        features: int32 `(n,)`.
        values: float32 `(n, num_floats)`: weights, then slots.
        last_steps: int64 `(n,)`. The last update of each row.
        counts: int64 `(n,)`. How many updates each row has seen.

    Example:

    >>> Rows._fields
    ('ids', 'features', 'values', 'last_steps', 'counts')
    """

    ids: tf.Tensor
    features: tf.Tensor
    values: tf.Tensor
    last_steps: tf.Tensor
    counts: tf.Tensor


class EmbeddingStore:
    """Maps keys to rows `[weights | optimizer slots]`, and trains them.

    A key is the pair (feature, id), and every int64 is a legal id. Where a method takes
    `ids` of shape `(n,)` and `features` of shape `(p,)`, p must divide n, and key i is
    `(features[i % p], ids[i])`. Feature -1 stands for an absent key: it reads zeros and
    takes no gradient.

    Args:
        config: `StoreConfig`.
        budget: `MemoryBudget`; stores may share one. `None` means no limit.

    Example:

    >>> config = StoreConfig("users", 2, SparseOptimizer("sgd", learning_rate=0.5),
    ...                      RowInitializer("constant", 1.0), feature_seeds=(7,),
    ...                      default_row=(0.0, 0.0))
    >>> store = EmbeddingStore(config)
    >>> ids, feature = tf.constant([5, 9, 5], tf.int64), tf.constant([0])
    >>> rows, ticket = store.lookup(ids, feature)
    >>> int(store.update(ticket, tf.ones((3, 2)), 0.5))
    1
    >>> store.read(ids, feature).numpy().tolist()
    [[0.0, 0.0], [0.5, 0.5], [0.0, 0.0]]
    """

    def __init__(self, config: StoreConfig, budget: MemoryBudget | None = None) -> None:
        self.config = config
        # Kept, since the budget lives as long as its handle.
        self._budget = budget or MemoryBudget()
        self._ops = library.load()
        with tf.init_scope():
            self._handle = self._ops.tfctr_embedding_store(
                self._budget.handle, **config.op_attributes()
            )
        # A graph that uses the store keeps its handle, and TensorFlow keeps some graphs
        # for good: those with a custom gradient, as every Keras optimizer makes.
        closing = weakref.finalize(self, _close, self._ops, self._handle)
        closing.atexit = False

    def lookup(
        self,
        ids: tf.Tensor,
        features: tf.Tensor,
        expected_step: tf.Tensor | int = -1,
        counts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the weights of keys for training, inserting unseen keys.

        Keys that the config's admission refuses are counted, and read the default row.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)`.
            expected_step: int64 scalar. How many updates the caller believes the store
                has seen; any other number is an error. -1 if it has no belief.
            counts: int32 `(n,)`, none negative. How often each key counts for
                admission, and for the clipping of its gradient. `None`: once.

        Returns:
            The weights, float32 `(n, dim)`, and the ticket for `update`, a scalar.

        Raises:
            tf.errors.ResourceExhaustedError: If the budget is used up and there is no
                eviction policy. Nothing was inserted.
            tf.errors.FailedPreconditionError: If `expected_step` is wrong.
        """
        expected_step = tf.cast(expected_step, tf.int64)
        counts = tf.zeros([0], tf.int32) if counts is None else counts
        weights, ticket = self._ops.tfctr_embedding_store_lookup(
            self._handle, ids, features, expected_step, counts, dim=self.config.dim
        )
        return weights, ticket

    def read(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tf.Tensor:
        """Returns the weights of keys; never updated ones read the default row.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)`.
            expected_step: As for `lookup`.

        Returns:
            The weights, float32 `(n, dim)`.
        """
        expected_step = tf.cast(expected_step, tf.int64)
        return self._ops.tfctr_embedding_store_read(
            self._handle, ids, features, expected_step, dim=self.config.dim
        )

    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        """Brings rows from disk up into memory, for a lookup to come.

        Changes no result. Other calls go on while the disk is read.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)`.
            unless_cached: Boolean. Whether to do nothing while the page cache of the
                system has nearly all rows that are read: the lookup then waits for no
                disk anyway.

        Returns:
            In a graph, the operation; else nothing.
        """
        return self._ops.tfctr_embedding_store_prefetch(
            self._handle, ids, features, unless_cached=unless_cached
        )

    def update(
        self,
        ticket: tf.Tensor,
        gradients: tf.Tensor,
        learning_rate: tf.Tensor | float,
        is_good: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Sums the gradients of equal keys and moves each distinct row once.

        Several lookups of one step make one update: it is applied when the last of
        their tickets reports, at the latest before the next lookup, read or export.

        Args:
            ticket: Of the lookup that gave the rows.
            gradients: float32 `(n, dim)`.
            learning_rate: float32 scalar, finite.
            is_good: bool scalar. If false, the gradients count as bad, whatever they
                are. `None`: they tell.

        Returns:
            How many updates the store has seen, this one included: int64 scalar.

        Raises:
            tf.errors.InvalidArgumentError: If a gradient is NaN, infinite or beyond
                1e12, unless the config says to skip. No row was changed.
        """
        is_good = tf.constant(True) if is_good is None else is_good
        return self._ops.tfctr_embedding_store_update(
            self._handle, ticket, gradients, tf.cast(learning_rate, tf.float32), is_good
        )

    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        """Sets the weights of keys, inserting unseen ones.

        Slots and counters of rows that exist stay. Of equal keys, the last wins.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)`.
            weights: float32 `(n, dim)`.
        """
        self._ops.tfctr_embedding_store_write(self._handle, ids, features, weights)

    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Removes keys and returns how many of them were ever trained or written.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)`.
        """
        return self._ops.tfctr_embedding_store_remove(self._handle, ids, features)

    def expire(self) -> tf.Tensor:
        """Removes rows by the config's expiry, and returns how many: int64 scalar.

        Raises:
            tf.errors.FailedPreconditionError: If the config says of none to expire.
        """
        return self._ops.tfctr_embedding_store_expire(self._handle)

    def export_rows(self) -> Rows:
        """Returns all rows that were ever updated or written, as of one moment."""
        return Rows(
            *self._ops.tfctr_embedding_store_export(
                self._handle, num_floats=self.config.num_floats
            )
        )

    def read_rows(self, ids: tf.Tensor, features: tf.Tensor) -> tuple[Rows, tf.Tensor]:
        """Returns the whole rows of keys, and which of them were updated or written.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(n,)`.

        Returns:
            `Rows`, with zeros for keys that never were, and bool `(n,)`.
        """
        *rows, known = self._ops.tfctr_embedding_store_read_rows(
            self._handle, ids, features, num_floats=self.config.num_floats
        )
        return Rows(ids, features, *rows), known

    def put_rows(self, rows: Rows, step: tf.Tensor | int) -> Any:
        """Sets whole rows, inserting unseen keys; of equal keys, the last wins.

        Args:
            rows: `Rows`, as `export_rows` and `read_rows` give them.
            step: int64 scalar. How many updates the store has then seen, unless it had
                seen more.

        Returns:
            In a graph, the operation; else nothing.

        Raises:
            tf.errors.InvalidArgumentError: If these are no such rows. Nothing has
                changed.
        """
        return self._ops.tfctr_embedding_store_put_rows(
            self._handle, *rows, tf.cast(step, tf.int64)
        )

    def import_rows(self, rows: Rows, step: int) -> None:
        """Replaces all rows of the store, and forgets what admission counted.

        Args:
            rows: `Rows`, as `export_rows` gave them.
            step: Integer. How many updates the store had seen.
        """
        self._ops.tfctr_embedding_store_import(
            self._handle, *rows, tf.constant(step, tf.int64)
        )

    def export_admission(self) -> tf.Tensor:
        """Returns what admission counted: uint8 `(n,)`, of no bytes without admission.

        It is what a snapshot keeps beside the rows.
        """
        return self._ops.tfctr_embedding_store_export_admission(self._handle)

    def import_admission(self, counts: tf.Tensor, features: Sequence[int]) -> None:
        """Brings back what admission counted, which `import_rows` forgets.

        Args:
            counts: uint8 `(n,)`, as `export_admission` gave it.
            features: Integers: feature f there becomes `features[f]`.

        Raises:
            tf.errors.DataLossError: If it is damaged.
        """
        self._ops.tfctr_embedding_store_import_admission(
            self._handle, counts, tf.constant(features, tf.int32)
        )

    def save(self, directory: str, metadata: str = "") -> dict[str, int]:
        """Writes all rows, as of one moment, to a new directory: a snapshot.

        Rows that have not changed since the last snapshot are not written again: their
        files are linked, or copied if the directory is on another file system.

        Args:
            directory: String. It must not exist; its parents are made if need be.
            metadata: String, kept beside the rows.

        Returns:
            A dict of counts: `rows` in the snapshot, `rows_written` of them now,
            `bytes` of its files, and `linked_bytes` of these, shared with others.

        Raises:
            tf.errors.FailedPreconditionError: If the directory exists.
            tf.errors.ResourceExhaustedError: If the disk is full.
            tf.errors.UnavailableError: If the disk refuses. After an error, there is no
                directory.
        """
        self.begin_save(directory)
        return self.finish_save(metadata)

    def begin_save(self, directory: str, scratch: str | None = None) -> None:
        """Begins a snapshot: it is of this moment. `finish_save` does the work.

        To begin another, or to replace all rows, gives up what was begun.

        Args:
            directory: String. It must not exist; its parents are made if need be.
            scratch: String. Directory for what snapshots share, where the config has
                no `ssd_directory`; best on the same file system. The first snapshot
                chooses. `None` means the parent of `directory`.
        """
        scratch = os.path.dirname(directory) or "." if scratch is None else scratch
        self._ops.tfctr_embedding_store_begin_save(self._handle, directory, scratch)

    def finish_save(self, metadata: str = "") -> dict[str, int]:
        """Writes the snapshot that was begun; training may go on in other threads."""
        report = self._ops.tfctr_embedding_store_finish_save(self._handle, metadata)
        names = ("rows", "rows_written", "bytes", "linked_bytes")
        return dict(zip(names, report.numpy().tolist(), strict=True))

    def restore(
        self,
        directories: str | Sequence[str],
        features: Sequence[int],
        seeds: Sequence[int] = (),
        owner: int = 0,
        num_owners: int = 1,
    ) -> None:
        """Replaces all rows, and the step, by those of a snapshot.

        Args:
            directories: String, as given to `save`; or strings, of the parts in which
                several stores have saved one table at one step.
            features: Integers: feature f of the snapshot becomes `features[f]`.
            seeds: Integers: the `feature_seeds` of this store from now on, if given.
            owner: Integer. Only keys of this one of the owners are taken, as
                `route_keys` assigns them.
            num_owners: Integer. How many owners there are.

        Raises:
            tf.errors.InvalidArgumentError: If the snapshot is of other rows, or its
                parts are of several steps. Nothing has changed.
            tf.errors.DataLossError: If it is damaged. If that is where rows are, the
                store is empty; else nothing has changed.
        """
        if isinstance(directories, str):
            directories = [directories]
        self._ops.tfctr_embedding_store_restore(
            self._handle,
            tf.constant(directories, tf.string),
            tf.constant(features, tf.int32),
            tf.constant([signed(seed) for seed in seeds], tf.int64),
            owner=owner,
            num_owners=num_owners,
        )

    def stats(self) -> dict[str, Any]:
        """Returns counts of what the store holds and did: integers, and one float.

        `rows` in memory; `known_rows` that were ever updated or written, wherever they
        are; `row_bytes` of one row; `memory_bytes` of rows, index and what is reserved
        for them; `evicted_rows` that left memory; `skipped_updates` for a bad gradient;
        the `step`; `rows_on_disk_only`; `disk_bytes`; how many `rows_read` from disk
        and `rows_written` there; `expired_rows`; and of admission: `refused_keys` of
        lookups, `tracked_keys` that are counted one by one, and `admission_bytes` of
        its counters in memory. Of the updates of this store: `updated_rows`, each row
        counting once in each update that moved it; `clipped_rows` of these; and the
        float `clipped_share`, 0.0 before the first. Of its lookups for training, each
        row counting once in each: `found_rows` in memory, `promoted_rows` that came up
        from disk, and `inserted_rows`, new ones; `stalled_lookups` that read the disk
        or its cache, and the `stalled_nanoseconds` they took for it.
        """
        names = (
            "rows known_rows row_bytes memory_bytes evicted_rows skipped_updates step "
            "rows_on_disk_only disk_bytes rows_read rows_written expired_rows "
            "refused_keys tracked_keys admission_bytes updated_rows clipped_rows "
            "found_rows inserted_rows promoted_rows stalled_lookups "
            "stalled_nanoseconds"
        ).split()
        values = self._ops.tfctr_embedding_store_stats(self._handle).numpy().tolist()
        stats: dict[str, Any] = dict(zip(names, values, strict=True))
        share = stats["clipped_rows"] / max(stats["updated_rows"], 1)
        return {**stats, "clipped_share": share}


def _close(ops: Any, handle: tf.Tensor) -> None:
    call_eagerly(lambda: ops.tfctr_embedding_store_close(handle))
