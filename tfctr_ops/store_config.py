"""`StoreConfig` and `MemoryBudget`: what an embedding store is told when it is made."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfctr_ops import library
from tfctr_ops.row_initializer import RowInitializer
from tfctr_ops.sparse_optimizer import SparseOptimizer

EVICTION_POLICIES = ("none", "clock", "lru", "lfu")
ADMISSIONS = ("none", "count", "bloom", "probability")
# Of a counter in a Bloom filter: 16 bits.
MAX_BLOOM_COUNT = 2**16 - 1


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
            up. Otherwise rows leave memory, with what they learned unless there is an
            `ssd_directory`: `"clock"`: those updated seldom, where updates long ago
            count less. `"lru"`: those trained the longest ago. `"lfu"`: those with the
            fewest updates in all.
        ssd_directory: String. Where rows go that leave memory; each store uses a
            directory of its own in it. `None`: nowhere.
        ssd_limit_bytes: Integer. How many bytes the store may use there. `None` means
            no limit.
        direct_reads: Boolean. Whether rows are read past the page cache of the system,
            which then holds none of them.
        admission: String. Which keys get a row in `lookup`: all with `"none"`; with
            `"count"`, those seen `admission_min_count` times, that batch included; the
            same with `"bloom"`, counted by a counting Bloom filter; with
            `"probability"`, each time they are seen with `admission_probability`.
        admission_min_count: Integer.
        admission_expected_keys: Integer. For how many distinct keys the filter is made.
        admission_false_positive_rate: Float in (0, 1). How many other keys such a
            filter takes for seen ones.
        admission_probability: Float in (0, 1].
        expiry_every: Integer. Every so many updates, rows are removed for one of the
            following reasons. `None`: only by `expire`.
        expiry_unused_steps: Integer. Not updated for more updates.
        expiry_min_norm: Float. Weights with a lesser L2 norm.
        expiry_max_rows: Integer. Above so many rows, those longest not updated.
        skip_bad_gradients: Boolean. Whether a step whose gradient is NaN, infinite or
            beyond 1e12 is skipped and counted, instead of being an error.
        num_threads: Integer. How many threads work on a batch; 0 means all intra-op
            threads of TensorFlow. Results do not depend on it.
        numa_node: Integer. From which NUMA node the memory of rows and index comes.
            `None`: as the process takes all of its memory.

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
    admission: str = "none"
    admission_min_count: int = 1
    admission_expected_keys: int = 1
    admission_false_positive_rate: float = 0.01
    admission_probability: float = 1.0
    expiry_every: int | None = None
    expiry_unused_steps: int | None = None
    expiry_min_norm: float | None = None
    expiry_max_rows: int | None = None
    skip_bad_gradients: bool = False
    num_threads: int = 0
    numa_node: int | None = None

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
        self._check_admission()
        for name in ("every", "unused_steps", "min_norm", "max_rows"):
            value = getattr(self, f"expiry_{name}")
            if value is not None and not value > 0:
                raise ValueError(
                    f"`expiry_{name}` must be positive, or None. "
                    f"Received: expiry_{name}={value}."
                )
        if self.num_threads < 0:
            raise ValueError(
                "`num_threads` must not be negative. "
                f"Received: num_threads={self.num_threads}."
            )
        if self.numa_node is not None and self.numa_node < 0:
            raise ValueError(
                "`numa_node` must not be negative. "
                f"Received: numa_node={self.numa_node}."
            )

    def _check_admission(self) -> None:
        if self.admission not in ADMISSIONS:
            known = ", ".join(f"'{admission}'" for admission in ADMISSIONS)
            raise ValueError(
                f"`admission` must be one of {known}. "
                f"Received: admission={self.admission!r}."
            )
        most = MAX_BLOOM_COUNT if self.admission == "bloom" else 2**31 - 1
        if not 1 <= self.admission_min_count <= most:
            raise ValueError(
                f"`admission_min_count` must lie in [1, {most}]. "
                f"Received: admission_min_count={self.admission_min_count}."
            )
        if self.admission_expected_keys < 1:
            raise ValueError(
                "`admission_expected_keys` must be positive. "
                f"Received: admission_expected_keys={self.admission_expected_keys}."
            )
        rate = self.admission_false_positive_rate
        if not 0.0 < rate < 1.0:
            raise ValueError(
                "`admission_false_positive_rate` must lie in (0, 1). "
                f"Received: admission_false_positive_rate={rate}."
            )
        if not 0.0 < self.admission_probability <= 1.0:
            raise ValueError(
                "`admission_probability` must lie in (0, 1]. "
                f"Received: admission_probability={self.admission_probability}."
            )

    @property
    def num_floats(self) -> int:
        """Weights and slots of a row."""
        return self.dim + self.optimizer.num_slot_floats(self.dim)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory: a header of 24, then the floats, in eights."""
        return 24 + (self.num_floats + self.num_floats % 2) * 4

    def op_attributes(self) -> dict[str, Any]:
        """Returns the attributes of the op that makes a store of it."""
        return dict(
            table=self.table,
            dim=self.dim,
            feature_seeds=[signed(seed) for seed in self.feature_seeds],
            default_row=self.default_row,
            num_threads=self.num_threads,
            numa_node=-1 if self.numa_node is None else self.numa_node,
            skip_bad_gradients=self.skip_bad_gradients,
            eviction_policy=self.eviction_policy,
            ssd_directory=self.ssd_directory or "",
            ssd_limit_bytes=-1
            if self.ssd_limit_bytes is None
            else self.ssd_limit_bytes,
            direct_reads=self.direct_reads,
            admission=self.admission,
            admission_min_count=self.admission_min_count,
            admission_expected_keys=self.admission_expected_keys,
            admission_false_positive_rate=self.admission_false_positive_rate,
            admission_probability=self.admission_probability,
            expiry_every=self.expiry_every or 0,
            expiry_unused_steps=-1
            if self.expiry_unused_steps is None
            else self.expiry_unused_steps,
            expiry_min_norm=self.expiry_min_norm or 0.0,
            expiry_max_rows=-1
            if self.expiry_max_rows is None
            else self.expiry_max_rows,
            initializer=self.initializer.kind,
            initializer_location=self.initializer.location,
            initializer_scale=self.initializer.scale,
            **self.optimizer.for_dim(self.dim).op_attributes(),
        )


def signed(word: int) -> int:
    """Returns the int64 with the same 64 bits."""
    word %= 1 << 64
    return word - (1 << 64) if word >= 1 << 63 else word
