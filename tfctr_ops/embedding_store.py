"""`EmbeddingStore`: the Python handle of the native embedding store."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfctr_ops import library
from tfctr_ops.row_initializer import RowInitializer
from tfctr_ops.sparse_optimizer import SparseOptimizer

EVICTION_POLICIES = ("none", "clock")


class MemoryBudget:
    """Bounds the bytes of rows that the stores it is given to keep in memory.

    A batch that needs more than fits is held all the same while it is trained.

    Args:
        limit_bytes: Integer, or `None` for no limit.

    Example:

    >>> budget = MemoryBudget(4_000_000_000)
    >>> budget.limit_bytes
    4000000000
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ValueError(
                "`limit_bytes` must not be negative. "
                f"Received: limit_bytes={limit_bytes}."
            )
        self.limit_bytes = limit_bytes
        with tf.init_scope():
            self.handle = library.load().tfctr_memory_budget(
                limit_bytes=-1 if limit_bytes is None else limit_bytes
            )


@dataclasses.dataclass(frozen=True)
class StoreConfig:
    """What a store is told when it is made.

    Args:
        table: String. Name of the table, for messages.
        dim: Integer. Width of the weights of a row.
        optimizer: `SparseOptimizer`.
        initializer: `RowInitializer`.
        feature_seeds: Tuple of integers of 64 bits, one per feature. With the id, the
            seed of the feature determines the first weights of a row.
        default_row: Tuple of `dim` floats: what keys read that were never updated.
        eviction_policy: String. `"none"`: new keys are an error once the budget is used
            up. `"clock"`: rows leave memory that were not trained lately, with what
            they learned unless there is an `ssd_directory`.
        ssd_directory: String. Where rows go that leave memory; each store uses a
            directory of its own in it. `None`: nowhere.
        ssd_limit_bytes: Integer. How many bytes the store may use there. `None` means
            no limit.
        direct_reads: Boolean. Whether rows are read past the page cache of the system,
            which then holds none of them.
        skip_bad_gradients: Boolean. Whether a step whose gradient is NaN, infinite or
            beyond 1e12 is skipped and counted, instead of being an error.
        num_threads: Integer. How many threads work on a batch; 0 means all intra-op
            threads of TensorFlow. Results do not depend on it.

    Example:

    >>> StoreConfig("ads", 2, SparseOptimizer("sgd"), RowInitializer("constant"),
    ...             feature_seeds=(1,), default_row=(0.0, 0.0)).row_bytes
    32
    """

    table: str
    dim: int
    optimizer: SparseOptimizer
    initializer: RowInitializer
    feature_seeds: tuple[int, ...]
    default_row: tuple[float, ...]
    eviction_policy: str = "none"
    ssd_directory: str | None = None
    ssd_limit_bytes: int | None = None
    direct_reads: bool = False
    skip_bad_gradients: bool = False
    num_threads: int = 0

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(
                f"`dim` must be a positive integer. Received: dim={self.dim}."
            )
        if len(self.default_row) != self.dim:
            raise ValueError(
                f"`default_row` must have dim={self.dim} values. "
                f"Received: {len(self.default_row)} values."
            )
        if not self.feature_seeds:
            raise ValueError(
                "`feature_seeds` must have one seed per feature. Received: none."
            )
        if self.eviction_policy not in EVICTION_POLICIES:
            known = ", ".join(f"'{policy}'" for policy in EVICTION_POLICIES)
            raise ValueError(
                f"`eviction_policy` must be one of {known}. "
                f"Received: eviction_policy={self.eviction_policy!r}."
            )
        if self.ssd_directory is not None and self.eviction_policy == "none":
            raise ValueError(
                "With an `ssd_directory`, `eviction_policy` says which rows go there. "
                "Received: eviction_policy='none'. Say 'clock'."
            )
        if self.num_threads < 0:
            raise ValueError(
                "`num_threads` must not be negative. "
                f"Received: num_threads={self.num_threads}."
            )

    @property
    def num_floats(self) -> int:
        """Weights and slots of a row."""
        return self.dim + self.optimizer.num_slot_floats(self.dim)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory: a header of 24, then the floats, in eights."""
        return 24 + (self.num_floats + self.num_floats % 2) * 4


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
        optimizer = config.optimizer
        with tf.init_scope():
            self._handle = self._ops.tfctr_embedding_store(
                self._budget.handle,
                table=config.table,
                dim=config.dim,
                feature_seeds=[_signed(seed) for seed in config.feature_seeds],
                default_row=config.default_row,
                num_threads=config.num_threads,
                skip_bad_gradients=config.skip_bad_gradients,
                eviction_policy=config.eviction_policy,
                ssd_directory=config.ssd_directory or "",
                ssd_limit_bytes=-1
                if config.ssd_limit_bytes is None
                else config.ssd_limit_bytes,
                direct_reads=config.direct_reads,
                initializer=config.initializer.kind,
                initializer_location=config.initializer.location,
                initializer_scale=config.initializer.scale,
                optimizer=optimizer.kind,
                beta_1=optimizer.beta_1,
                beta_2=optimizer.beta_2,
                epsilon=optimizer.epsilon,
                per_row_bias_correction=optimizer.bias_correction == "row",
                weight_decay=optimizer.weight_decay,
                initial_accumulator=optimizer.initial_accumulator_value,
                learning_rate_power=optimizer.learning_rate_power,
                l1=optimizer.l1,
                l2=optimizer.l2,
                l2_shrinkage=optimizer.l2_shrinkage,
                beta=optimizer.beta,
            )

    def lookup(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the weights of keys for training, inserting unseen keys.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)`.
            expected_step: int64 scalar. How many updates the caller believes the store
                has seen; any other number is an error. -1 if it has no belief.

        Returns:
            The weights, float32 `(n, dim)`, and the ticket for `update`, a scalar.

        Raises:
            tf.errors.ResourceExhaustedError: If the budget is used up and there is no
                eviction policy. Nothing was inserted.
            tf.errors.FailedPreconditionError: If `expected_step` is wrong.
        """
        expected_step = tf.cast(expected_step, tf.int64)
        weights, ticket = self._ops.tfctr_embedding_store_lookup(
            self._handle, ids, features, expected_step, dim=self.config.dim
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

    def prefetch(self, ids: tf.Tensor, features: tf.Tensor) -> Any:
        """Brings rows from disk up into memory, for a lookup to come.

        Changes no result. Other calls go on while the disk is read.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)`.

        Returns:
            In a graph, the operation; else nothing.
        """
        return self._ops.tfctr_embedding_store_prefetch(self._handle, ids, features)

    def update(
        self, ticket: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor | float
    ) -> tf.Tensor:
        """Sums the gradients of equal keys and moves each distinct row once.

        Several lookups of one step make one update: it is applied when the last of
        their tickets reports, at the latest before the next lookup, read or export.

        Args:
            ticket: Of the lookup that gave the rows.
            gradients: float32 `(n, dim)`.
            learning_rate: float32 scalar, finite.

        Returns:
            How many updates the store has seen, this one included: int64 scalar.

        Raises:
            tf.errors.InvalidArgumentError: If a gradient is NaN, infinite or beyond
                1e12, unless the config says to skip. No row was changed.
        """
        return self._ops.tfctr_embedding_store_update(
            self._handle, ticket, gradients, tf.cast(learning_rate, tf.float32)
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

    def export_rows(self) -> Rows:
        """Returns all rows that were ever updated or written, as of one moment."""
        return Rows(
            *self._ops.tfctr_embedding_store_export(
                self._handle, num_floats=self.config.num_floats
            )
        )

    def import_rows(self, rows: Rows, step: int) -> None:
        """Replaces all rows of the store.

        Args:
            rows: `Rows`, as `export_rows` gave them.
            step: Integer. How many updates the store had seen.
        """
        self._ops.tfctr_embedding_store_import(
            self._handle, *rows, tf.constant(step, tf.int64)
        )

    def save(self, directory: str, metadata: str = "") -> dict[str, int]:
        """Writes all rows, as of one moment, to a new directory: a snapshot.

        Rows that have not changed since the last snapshot are not written again: their
        files are linked, or copied if the directory is on another file system.

        Args:
            directory: String. It must not exist; its parents are made if need be.
            metadata: String, kept beside the rows.

        Returns:
            Counts: `rows` in the snapshot, `rows_written` of them now, `bytes` of its
            files, and `linked_bytes` of these, shared with others.

        Raises:
            tf.errors.FailedPreconditionError: If the directory exists.
            tf.errors.ResourceExhaustedError: If the disk is full.
            tf.errors.UnavailableError: If the disk refuses. After an error, there is no
                directory.
        """
        self.begin_save(directory)
        return self.finish_save(metadata)

    def begin_save(self, directory: str) -> None:
        """Begins a snapshot: it is of this moment. `finish_save` does the work.

        To begin another, or to replace all rows, gives up what was begun.
        """
        self._ops.tfctr_embedding_store_begin_save(self._handle, directory)

    def finish_save(self, metadata: str = "") -> dict[str, int]:
        """Writes the snapshot that was begun; training may go on in other threads."""
        report = self._ops.tfctr_embedding_store_finish_save(self._handle, metadata)
        names = ("rows", "rows_written", "bytes", "linked_bytes")
        return dict(zip(names, report.numpy().tolist(), strict=True))

    def restore(self, directory: str, features: Sequence[int]) -> None:
        """Replaces all rows, and the step, by those of a snapshot.

        Args:
            directory: String, as given to `save`.
            features: Integers: feature f of the snapshot becomes `features[f]`.

        Raises:
            tf.errors.InvalidArgumentError: If the snapshot is of other rows. Nothing
                has changed.
            tf.errors.DataLossError: If it is damaged. The store is empty.
        """
        self._ops.tfctr_embedding_store_restore(
            self._handle, directory, tf.constant(features, tf.int32)
        )

    def stats(self) -> dict[str, int]:
        """Returns counts of what the store holds and did.

        `rows` in memory; `known_rows` that were ever updated or written, wherever they
        are; `row_bytes` of one row; `memory_bytes` of rows, index and what is reserved
        for them; `evicted_rows` that left memory; `skipped_updates` for a bad gradient;
        the `step`; `rows_on_disk_only`; `disk_bytes`; and how many `rows_read` from
        disk and `rows_written` there.
        """
        names = (
            "rows",
            "known_rows",
            "row_bytes",
            "memory_bytes",
            "evicted_rows",
            "skipped_updates",
            "step",
            "rows_on_disk_only",
            "disk_bytes",
            "rows_read",
            "rows_written",
        )
        values = self._ops.tfctr_embedding_store_stats(self._handle).numpy().tolist()
        return dict(zip(names, values, strict=True))


def _signed(word: int) -> int:
    """Returns the int64 with the same 64 bits."""
    word %= 1 << 64
    return word - (1 << 64) if word >= 1 << 63 else word
