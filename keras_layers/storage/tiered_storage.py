"""`TieredStorage`: rows in the embedding store of `tfctr_ops`."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers.storage.byte_size import parse_bytes
from keras_layers.storage.storage import Forecast, Keys, Storage, Table, Vectors
from keras_layers.table_config import TableConfig
from tfctr_ops import EmbeddingStore, MemoryBudget, Rows, StoreConfig

# Of cc/store: shards, entries of an index segment, when it splits, and its bytes.
_NUM_SHARDS = 64
_SEGMENT_LIMIT = 2048 // 5 * 4
_SEGMENT_BYTES = 2048 * 8 + 64
_CHUNK_BYTES = 128 << 10


@keras.saving.register_keras_serializable(package="tfctr")
class TieredStorage(Storage):
    """Keeps rows in memory.

    Layers that are given the same object share its budget.

    Args:
        ram: Bytes of rows in memory: an integer, or a string such as `"4GB"`. The index
            comes on top, 10 to 20 bytes a key. `None` means no limit.
        eviction_policy: String. What a full budget does: `"none"` raises an error that
            names the remedies; `"clock"` lets rows leave that were not used lately, and
            with them what they learned.
        num_threads: Integer. How many threads work on a batch; 0 means all intra-op
            threads of TensorFlow. Results do not depend on it.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> TieredStorage(ram="4GB").get_config()["ram"]
    '4GB'
    """

    def __init__(
        self,
        ram: int | str | None = None,
        eviction_policy: str = "none",
        num_threads: int = 0,
    ) -> None:
        if eviction_policy not in ("none", "clock"):
            raise ValueError(
                "`eviction_policy` must be one of 'none', 'clock'. "
                f"Received: eviction_policy={eviction_policy!r}."
            )
        if num_threads < 0:
            raise ValueError(
                "`num_threads` must not be negative. "
                f"Received: num_threads={num_threads}."
            )
        self._ram = ram
        self._ram_bytes = None if ram is None else parse_bytes("ram", ram)
        self._eviction_policy = eviction_policy
        self._num_threads = num_threads

    @functools.cached_property
    def _budget(self) -> MemoryBudget:
        return MemoryBudget(self._ram_bytes)

    def open(self, config: TableConfig, feature_seeds: Sequence[int]) -> "TieredTable":
        store_config = self._store_config(config, feature_seeds)
        return TieredTable(EmbeddingStore(store_config, self._budget))

    def forecast(self, config: TableConfig, num_keys: int) -> Forecast:
        """Returns what a table with `num_keys` keys will need.

        Keys spread evenly over shards and index segments, and a segment splits when it
        is four fifths full, so memory follows from the number of keys alone.
        """
        row_bytes = self._store_config(config, feature_seeds=(0,)).row_bytes
        keys_per_shard = -(-num_keys // _NUM_SHARDS)
        segments = 1
        while segments * _SEGMENT_LIMIT < keys_per_shard:
            segments *= 2
        chunk_rows = 1
        while chunk_rows * 2 * row_bytes <= _CHUNK_BYTES:
            chunk_rows *= 2
        chunks = -(-keys_per_shard // chunk_rows)
        per_shard = segments * _SEGMENT_BYTES + chunks * chunk_rows * row_bytes
        return Forecast(num_keys, row_bytes, _NUM_SHARDS * per_shard, ssd_bytes=0)

    def describe(self) -> str:
        return "ram"

    def get_config(self) -> dict[str, Any]:
        return {
            "ram": self._ram,
            "eviction_policy": self._eviction_policy,
            "num_threads": self._num_threads,
        }

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
            eviction_policy=self._eviction_policy,
            skip_bad_gradients=config.bad_gradients == "skip",
            num_threads=self._num_threads,
        )


class TieredTable(Table):
    """A table in an `EmbeddingStore`; see `Table`."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store

    def lookup(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return self._store.lookup(ids, features, expected_step)

    def update(
        self, ticket: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Tensor:
        return self._store.update(ticket, gradients, learning_rate)

    def read(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tf.Tensor:
        return self._store.read(ids, features, expected_step)

    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        self._store.write(ids, features, weights)

    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        return self._store.remove(ids, features)

    def export(self, batch_size: int) -> Iterator[tuple[Keys, Vectors]]:
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

    def size(self) -> int:
        return self._store.stats()["known_rows"]

    def stats(self) -> dict[str, int]:
        return self._store.stats()
