"""`HybridStorage`: hot rows in a table of TFRA, the others in memory and on SSD."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_layers.storage.storage import Forecast, Storage
from keras_layers.storage.tfra.hybrid_rows import HybridRows
from keras_layers.storage.tfra.hybrid_table import HybridTable, TieredRows
from keras_layers.storage.tfra.tfra_storage import TfraStorage, refuse_admission
from keras_layers.storage.tiered_storage import TieredStorage
from keras_layers.table_config import TableConfig

# HKV evicts from a bucket of 128 keys that is full, without a word. Filled to this
# share, one of 10⁸ buckets is, by the normal law.
_HKV_FILLED = 0.6


@keras.saving.register_keras_serializable(package="tfctr")
class HybridStorage(Storage):
    """Keeps the rows trained last in GPU memory, and all others in memory and on SSD.

    Without a GPU the hot tier is a table of TFRA in the memory of the host: the same
    code, but slower than `TieredStorage` alone.

    A step finds its rows in the hot tier, those that are not there in the cold one, and
    puts all of them into the hot one when it has moved them. When that has more than
    `capacity` rows, those whose last update is the longest ago move down. No update is
    lost, whatever the capacity: training gives the numbers of `TieredStorage`, to float
    tolerance. Snapshots are the cold tier's, brought up to date: of one moment, written
    while training goes on, and incremental.

    Args:
        capacity: Integer. How many rows of a table stay in the hot tier between steps.
            The rows of a batch are there while it is trained, however many.
        hot: `TfraStorage`. `None` means a table of HKV on the first GPU, all in its
            memory, or without a GPU one on the CPU.
        cold: `TieredStorage`. `None` means `TieredStorage()`.

    Raises:
        ValueError: If `capacity` is not positive, or more than a `hot` of HKV can hold
            without losing rows: 0.6 of its own capacity.

    Example:

    >>> cold = TieredStorage(ram="64GB", ssd="/nvme/tables")
    >>> HybridStorage(capacity=20_000_000, cold=cold).describe()
    'hybrid'
    """

    def __init__(
        self,
        capacity: int,
        hot: TfraStorage | None = None,
        cold: TieredStorage | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(
                "`capacity` must be a positive number of rows. "
                f"Received: capacity={capacity}."
            )
        most = None if hot is None else hot.capacity
        if most is not None and capacity > _HKV_FILLED * most:
            raise ValueError(
                f"A hot tier of HKV made for {most} rows keeps {_HKV_FILLED} of them "
                f"without losing any. Received: capacity={capacity}. Make it with "
                f"TfraStorage('hkv', capacity={math.ceil(capacity / _HKV_FILLED)}, "
                "...), or more."
            )
        self._capacity = capacity
        self._hot = hot
        self._cold = cold or TieredStorage()

    def open(self, config: TableConfig, feature_seeds: Sequence[int]) -> HybridTable:
        """Makes an empty table.

        Args:
            config: `TableConfig`.
            feature_seeds: One integer per feature.

        Raises:
            ImportError: If TFRA is missing or does not load.
            ValueError: If the table has an admission, or there is no such device.
        """
        refuse_admission("HybridStorage", config)
        hot = self._hot_of(config)
        hot_rows = hot.open_rows(config)
        cold = self._cold.open_store(config, feature_seeds)
        with tf.init_scope(), tf.device("/CPU:0"):
            tiers = HybridRows(hot_rows, cold, self._capacity)
            rows = TieredRows(config, feature_seeds, tiers, hot.device)
            return HybridTable(config, rows, hot.row_bytes(config))

    def forecast(self, config: TableConfig, num_keys: int) -> Forecast:
        """Returns what a table with `num_keys` keys will need.

        `ram_bytes` are of both tiers: with a hot tier on a GPU, of its memory too. All
        rows are counted in the cold one, where a hot row has its place.
        """
        cold = self._cold.forecast(config, num_keys)
        num_hot = min(num_keys, self._capacity)
        hot = self._hot_of(config).forecast(config, num_hot)
        ram_bytes = cold.ram_bytes + hot.ram_bytes
        return Forecast(num_keys, cold.row_bytes, ram_bytes, cold.ssd_bytes)

    def describe(self) -> str:
        return "hybrid"

    def get_config(self) -> dict[str, Any]:
        return {"capacity": self._capacity, "hot": self._hot, "cold": self._cold}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "HybridStorage":
        tiers: list[Any] = [
            tier
            if tier is None or isinstance(tier, Storage)
            else keras.saving.deserialize_keras_object(tier)
            for tier in (config["hot"], config["cold"])
        ]
        return cls(config["capacity"], *tiers)

    def _hot_of(self, config: TableConfig) -> TfraStorage:
        if self._hot is not None:
            return self._hot
        if not tf.config.list_logical_devices("GPU"):
            return TfraStorage(init_size=self._capacity)
        capacity = math.ceil(self._capacity / _HKV_FILLED)
        floats = config.dim + config.sparse_optimizer().num_slot_floats(config.dim) + 3
        return TfraStorage("hkv", capacity=capacity, hbm=4 * floats * capacity)
