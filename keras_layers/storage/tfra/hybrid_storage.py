"""`HybridStorage`: hot rows in a table of TFRA, the others in memory and on SSD."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_layers.number_checks import is_integer
from keras_layers.storage.storage import Forecast, Storage
from keras_layers.storage.tfra.hybrid_rows import HybridRows
from keras_layers.storage.tfra.hybrid_table import HybridTable
from keras_layers.storage.tfra.keyed_rows import NUM_COUNTERS
from keras_layers.storage.tfra.tfra_storage import (
    HKV_FILLED,
    TfraStorage,
    num_floats,
    refuse_admission,
)
from keras_layers.storage.tfra.trained_rows import TrainedRows
from keras_layers.storage.tiered_storage import TieredStorage
from keras_layers.table_config import TableConfig

# For how many rows a hot tier on the CPU makes room at first.
_FIRST_ROWS = 2**20


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
        TypeError: If a tier is another storage.
        ValueError: If `capacity` is not positive, or more than a `hot` of HKV can hold
            without losing rows, 0.6 of its own capacity; or if `cold` evicts for good.

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
        if not is_integer(capacity) or capacity < 1:
            raise ValueError(
                "`capacity` must be an integer, a positive number of rows. "
                f"Received: capacity={capacity!r}."
            )
        for name, tier, kind in (
            ("hot", hot, TfraStorage),
            ("cold", cold, TieredStorage),
        ):
            if not isinstance(tier, kind | None):
                raise TypeError(
                    f"`{name}` must be a {kind.__name__}, or None. "
                    f"Received: {name}={tier!r} of type {type(tier).__name__}."
                )
        most = None if hot is None else _most_of(hot)
        if most is not None and capacity > most:
            raise ValueError(
                f"A hot tier of HKV loses none of {most} rows at most, as it was made. "
                f"Received: capacity={capacity}. Make it with TfraStorage('hkv', "
                f"capacity={math.ceil(capacity / HKV_FILLED)}, ...), or more."
            )
        self._capacity = int(capacity)
        self._hot = hot
        self._cold = cold or TieredStorage()
        if self._cold.loses_rows:
            raise ValueError(
                "`cold` must not lose rows. Received: a TieredStorage with "
                f"eviction_policy={self._cold.get_config()['eviction_policy']!r} and "
                "without `ssd`. Give it a directory, or leave the policy out."
            )

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
            tiers = HybridRows(hot_rows, cold, self._capacity, _most_of(hot))
            rows = TrainedRows(config, feature_seeds, tiers, hot.device)
            return HybridTable(config, rows, tiers, hot.row_bytes(config))

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
            return TfraStorage(init_size=min(self._capacity, _FIRST_ROWS))
        capacity = math.ceil(self._capacity / HKV_FILLED)
        hbm = 4 * (num_floats(config) + NUM_COUNTERS) * capacity
        return TfraStorage("hkv", capacity=capacity, hbm=hbm)


def _most_of(hot: TfraStorage) -> int | None:
    """How many rows a hot tier may have that loses none."""
    return None if hot.capacity is None else int(HKV_FILLED * hot.capacity)
