"""`TieredStorage`: rows in the embedding store of `tfctr_ops`."""

import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers.number_checks import is_integer
from keras_layers.storage.byte_size import parse_bytes
from keras_layers.storage.storage import (
    Counts,
    Forecast,
    KeyPairs,
    SavedTable,
    Storage,
    Table,
    Vectors,
)
from keras_layers.table_config import TableConfig
from tfctr_ops import EmbeddingStore, MemoryBudget, Rows, StoreConfig
from tfctr_ops.store_config import EVICTION_POLICIES

# Of cc/store: shards, bytes of a chunk of rows and of an index segment without its
# entries, and the entries of a segment at first and at most.
_NUM_SHARDS = 64
_CHUNK_BYTES = 128 << 10
_SEGMENT_BYTES, _ENTRY_BYTES = 64, 8
_FIRST_CAPACITY, _CAPACITY = 64, 2048
_SECTOR = 4096
# As many as Linux can be built for.
_MAX_NUMA_NODES = 1024
# Bytes of a block of the lists of "lru" and "lfu", which is of 512 rows.
_LIST_BYTES = 4096


@keras.saving.register_keras_serializable(package="tfctr")
class TieredStorage(Storage):
    """Keeps rows in memory, and on SSD those that have no place there.

    Layers that are given the same object share its memory budget. Results do not
    depend on any of the arguments, unless rows are evicted without an SSD.

    Args:
        ram: Bytes of rows in memory: an integer, or a string such as `"4GB"`. A batch
            that needs more is held all the same while it is trained. The index comes on
            top, for rows on SSD too: 10 to 25 bytes a key from about a million keys on,
            and a few MB for any table. `None` means no limit.
        ssd: String or path. Directory on a fast disk; it is made if need be. Each table
            uses a locked directory of its own in it, which is gone when the table is:
            this is scratch space, and what shall last belongs into a checkpoint.
            `None`: rows live in memory only.
        ssd_limit: Bytes that a table may use in `ssd`, at least about twice its rows,
            and never less than some MB, which the error names. `None` means no limit.
        eviction_policy: String. `"none"`: without `ssd`, a full budget raises an error
            that names the remedies. Otherwise rows leave, to `ssd` or else with what
            they learned: `"clock"`, those updated seldom, where updates long ago count
            less; `"lru"`, those trained the longest ago; `"lfu"`, those with the fewest
            updates in all. The last two take 8 bytes a row in memory. `None` means
            `"clock"` with `ssd`, else `"none"`.
        direct_reads: Boolean. Whether `ssd` is read past the page cache of the system,
            which otherwise holds the rows read last in all memory that nobody uses.
        num_threads: Integer. How many threads work on a batch; 0 means all intra-op
            threads of TensorFlow.
        numa_node: Integer. The NUMA node that rows and index are kept in, such as
            `numa_node` of the placement that `tfctr.topology.apply` returns. Memory
            comes from other nodes once it is full, and from the node of the thread that
            touches it first where the system forbids to choose, as containers without
            the capability SYS_NICE do. It is part of the configuration: a saved model
            asks for this node where it is loaded. `None`: as the process takes all of
            its memory.

    Raises:
        ValueError: If an argument is out of range, or does not go with the others. A
            node that is not there is told when a table is opened, by
            `tf.errors.InvalidArgumentError`.

    Example:

    >>> TieredStorage(ram="4GB").get_config()["ram"]
    '4GB'
    """

    def __init__(
        self,
        ram: int | str | None = None,
        ssd: str | os.PathLike[str] | None = None,
        ssd_limit: int | str | None = None,
        eviction_policy: str | None = None,
        direct_reads: bool = False,
        num_threads: int = 0,
        numa_node: int | None = None,
    ) -> None:
        if eviction_policy not in (None, *EVICTION_POLICIES):
            known = ", ".join(f"'{policy}'" for policy in EVICTION_POLICIES)
            raise ValueError(
                f"`eviction_policy` must be one of {known}. "
                f"Received: eviction_policy={eviction_policy!r}."
            )
        if not is_integer(num_threads) or num_threads < 0:
            raise ValueError(
                "`num_threads` must be an integer of 0 or more. "
                f"Received: num_threads={num_threads!r}."
            )
        if numa_node is not None and not (
            is_integer(numa_node) and 0 <= numa_node < _MAX_NUMA_NODES
        ):
            raise ValueError(
                "`numa_node` must be the number of a NUMA node, or None. "
                f"Received: numa_node={numa_node!r}."
            )
        if ssd is None and (ssd_limit is not None or direct_reads):
            raise ValueError(
                "`ssd_limit` and `direct_reads` go with `ssd`, the directory. "
                f"Received: ssd=None, ssd_limit={ssd_limit!r}, "
                f"direct_reads={direct_reads}."
            )
        if ssd is not None and ram is None:
            raise ValueError(
                "With `ssd`, `ram` must say how many bytes of rows stay in memory: "
                "without a limit, none would ever leave. Received: ram=None."
            )
        if ssd is not None and eviction_policy == "none":
            raise ValueError(
                "With `ssd`, `eviction_policy` says which rows go there. Received: "
                "eviction_policy='none'. Leave it out, or say 'clock'."
            )
        self._ram = ram
        self._ram_bytes = None if ram is None else parse_bytes("ram", ram)
        self._ssd = None if ssd is None else os.fspath(ssd)
        self._ssd_limit = ssd_limit
        self._ssd_limit_bytes = (
            None if ssd_limit is None else parse_bytes("ssd_limit", ssd_limit)
        )
        self._eviction_policy = eviction_policy
        self._direct_reads = direct_reads
        self._num_threads = int(num_threads)
        self._numa_node = None if numa_node is None else int(numa_node)

    @functools.cached_property
    def _budget(self) -> MemoryBudget:
        return MemoryBudget(self._ram_bytes)

    def open(self, config: TableConfig, feature_seeds: Sequence[int]) -> "TieredTable":
        return TieredTable(self.open_store(config, feature_seeds))

    def open_store(
        self, config: TableConfig, feature_seeds: Sequence[int]
    ) -> EmbeddingStore:
        """Makes an empty store; see `open`."""
        store_config = self._store_config(config, feature_seeds)
        return EmbeddingStore(store_config, self._budget)

    @property
    def loses_rows(self) -> bool:
        """Whether rows may leave with what they learned."""
        return self._ssd is None and self._eviction_policy not in (None, "none")

    def forecast(self, config: TableConfig, num_keys: int) -> Forecast:
        """Returns what a table with `num_keys` keys will need.

        Keys spread over shards and index segments by their hash, so memory follows from
        the number of keys alone, but for chance.
        """
        row_bytes = self._store_config(config, feature_seeds=(0,)).row_bytes
        chunk_bytes = _CHUNK_BYTES
        if self._ram_bytes is not None:
            chunk_bytes = min(chunk_bytes, self._ram_bytes // _NUM_SHARDS // 8)
        in_ram, ssd_bytes = num_keys, 0
        if self._ssd is not None and self._ram_bytes is not None:
            in_ram = min(num_keys, self._ram_bytes // row_bytes)
            if num_keys > in_ram:
                ssd_bytes = _files_bytes(num_keys, row_bytes)
        keys, rows = num_keys / _NUM_SHARDS, in_ram / _NUM_SHARDS
        shard_bytes = _index_bytes(keys) + _rows_bytes(rows, row_bytes, chunk_bytes)
        if self._eviction_policy in ("lru", "lfu"):
            # One block for the heads of the lists, then blocks of 512 rows.
            shard_bytes += _LIST_BYTES + _rows_bytes(rows, 8, _LIST_BYTES)
        ram_bytes = round(_NUM_SHARDS * shard_bytes)
        return Forecast(num_keys, row_bytes, ram_bytes, ssd_bytes)

    def describe(self) -> str:
        return "ram" if self._ssd is None else "ram_ssd"

    def get_config(self) -> dict[str, Any]:
        return {
            "ram": self._ram,
            "ssd": self._ssd,
            "ssd_limit": self._ssd_limit,
            "eviction_policy": self._eviction_policy,
            "direct_reads": self._direct_reads,
            "num_threads": self._num_threads,
            "numa_node": self._numa_node,
        }

    def __deepcopy__(self, memo: Any) -> "TieredStorage":
        # A copy is another object, with a budget of its own.
        return TieredStorage(**self.get_config())

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TieredStorage":
        return cls(**config)

    def _store_config(
        self, config: TableConfig, feature_seeds: Sequence[int]
    ) -> StoreConfig:
        return StoreConfig(
            table=config.name,
            dim=config.dim,
            optimizer=config.sparse_optimizer(),
            initializer=config.row_initializer(),
            feature_seeds=tuple(feature_seeds),
            default_row=config.default_row or (0.0,) * config.dim,
            eviction_policy=self._eviction_policy
            or ("none" if self._ssd is None else "clock"),
            ssd_directory=self._ssd,
            ssd_limit_bytes=self._ssd_limit_bytes,
            direct_reads=self._direct_reads,
            skip_bad_gradients=config.bad_gradients == "skip",
            num_threads=self._num_threads,
            numa_node=self._numa_node,
            **(config.admission.store_options() if config.admission else {}),
            **(config.expiry.store_options() if config.expiry else {}),
        )


class TieredTable(Table):
    """A table in an `EmbeddingStore`; see `Table`."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store

    def lookup(
        self,
        ids: tf.Tensor,
        features: tf.Tensor,
        expected_step: tf.Tensor,
        counts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Any]:
        return self._store.lookup(ids, features, expected_step, counts)

    def update(
        self,
        ticket: Any,
        gradients: tf.Tensor,
        learning_rate: tf.Tensor,
        is_good: tf.Tensor | None = None,
    ) -> tf.Tensor:
        return self._store.update(ticket, gradients, learning_rate, is_good)

    def read(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tf.Tensor:
        return self._store.read(ids, features, expected_step)

    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        return self._store.prefetch(ids, features, unless_cached)

    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        self._store.write(ids, features, weights)

    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        return self._store.remove(ids, features)

    def expire(self) -> int:
        return int(self._store.expire())

    def export(self, batch_size: int) -> Iterator[tuple[KeyPairs, Vectors]]:
        rows = self._store.export_rows()
        features = rows.features.numpy().astype(np.int64)
        keys = np.stack([features, rows.ids.numpy()], axis=1)
        vectors = rows.values.numpy()[:, : self._store.config.dim]
        for start in range(0, len(keys), batch_size):
            yield keys[start : start + batch_size], vectors[start : start + batch_size]

    def save_rows(self) -> Rows:
        return self._store.export_rows()

    def restore_rows(self, rows: Rows, step: int) -> None:
        self._store.import_rows(rows, step)

    def save_admission(self) -> Counts:
        counts: Counts = self._store.export_admission().numpy()
        return counts

    def restore_admission(self, counts: Counts, features: Sequence[int]) -> None:
        self._store.import_admission(tf.constant(counts, tf.uint8), features)

    def begin_save(self, directory: str, scratch: str) -> None:
        self._store.begin_save(directory, scratch)

    def finish_save(self, metadata: str) -> dict[str, int]:
        return self._store.finish_save(metadata)

    def restore(self, saved: SavedTable) -> None:
        saved.restore_to(self._store)

    def size(self) -> int:
        return int(self._store.stats()["known_rows"])

    def stats(self) -> dict[str, Any]:
        return self._store.stats()


def _index_bytes(keys: float) -> float:
    """Returns the mean size of a shard's index, of about `keys` keys.

    A segment doubles, and splits at its greatest capacity, when it is four fifths full.
    The entries it leaves are kept for the next of their size.
    """
    entries, capacity = float(_FIRST_CAPACITY), _FIRST_CAPACITY
    while capacity < _CAPACITY:
        entries += 2 * capacity * _odds_beyond(capacity // 5 * 4, keys)
        capacity *= 2
    segments, nodes, limit = 1.0, 1, _CAPACITY // 5 * 4
    entries += _CAPACITY * _odds_beyond(limit, keys)
    while (odds := _odds_beyond(limit, keys / nodes)) > 0.0:
        segments += nodes * odds
        nodes *= 2
    entries += _CAPACITY * (segments - 1)
    return entries * _ENTRY_BYTES + segments * _SEGMENT_BYTES


def _rows_bytes(keys: float, row_bytes: int, chunk_bytes: int) -> float:
    """Returns the mean size of a shard's rows, which come in chunks of 2ⁿ of them."""
    chunk_rows = 1
    while chunk_rows * 2 * row_bytes <= chunk_bytes:
        chunk_rows *= 2
    chunks = max(0, int((keys - 9 * keys**0.5) / chunk_rows))  # Surely full.
    mean_chunks = float(chunks)
    while (odds := _odds_beyond(chunks * chunk_rows, keys)) > 0.0:
        mean_chunks += odds
        chunks += 1
    return mean_chunks * chunk_rows * row_bytes


def _files_bytes(keys: int, row_bytes: int) -> int:
    """Returns the size of the files once every row has left memory at some time.

    A row that has come back leaves its copy there. Pages hold whole rows behind a
    header of 24 bytes, and rows are compacted when more than half of them are stale.
    """
    page_bytes = -(-(24 + row_bytes) // _SECTOR) * _SECTOR
    pages = -(-keys // ((page_bytes - 24) // row_bytes))
    return 2 * pages * page_bytes


def _odds_beyond(limit: int, mean: float) -> float:
    """Returns the odds of more than `limit` keys where `mean` are expected."""
    if mean == 0.0:
        return 0.0
    # The normal law, near enough to Poisson's; odds that do not matter count as none.
    odds = 0.5 * math.erfc((limit + 0.5 - mean) / math.sqrt(2 * mean))
    return odds if odds > 1e-6 else 0.0
