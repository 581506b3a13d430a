"""`TfraStorage`: rows in the tables of TensorFlow Recommenders Addons."""

import math
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_layers.number_checks import is_integer
from keras_layers.storage.byte_size import parse_bytes
from keras_layers.storage.storage import Forecast, Storage
from keras_layers.storage.tfra.fused_rows import FusedRows, partition_words
from keras_layers.storage.tfra.import_guard import import_tfra
from keras_layers.storage.tfra.keyed_rows import NUM_COUNTERS
from keras_layers.storage.tfra.kv_creators import CREATORS, kv_creator
from keras_layers.storage.tfra.tfra_table import TfraTable
from keras_layers.storage.tfra.trained_rows import TrainedRows
from keras_layers.table_config import TableConfig

# HKV evicts from a bucket of 128 keys that is full, without a word. Filled to this
# share, one of 10⁷ is.
HKV_FILLED = 0.6
# Of a cuckoo table: its least size, how full it gets before it doubles, and the widest
# row that lies in the table itself.
_LEAST_SLOTS, _FULL, _INLINE_FLOATS = 8192, 0.9, 100


@keras.saving.register_keras_serializable(package="tfctr")
class TfraStorage(Storage):
    """Keeps rows in tables of TensorFlow Recommenders Addons (TFRA): CPU, GPU or Redis.

    Training gives the numbers of `TieredStorage`, to float tolerance: key-seeded first
    rows, one update a step, snapshots of the same format. A row is one value, weights
    and optimizer slots together; a step makes one find and one insert.

    TFRA's keys have 64 bits, for feature and id. In a table with one feature keys are
    exact, and so are ids of less than about `62 - log2(num_features)` bits. Of n ids
    that use all 64 bits, as hashed strings do, two of different features meet with odds
    of at most n² / 2⁶⁵, and the next lookup that meets the other's row is an error.

    Needs `tensorflow-recommenders-addons`, which is imported when a table is opened. A
    table is for one thread at a time, has no admission, and looks at a copy of all rows
    when it saves, exports or expires.

    Args:
        creator: String. `"cuckoo"`: memory of the CPU. `"hkv"`: a GPU, with the most
            recently used rows; its table is made for `capacity` rows, and beyond, or
            somewhat before, rows leave with all they learned, which `stats` counts as
            `evicted_rows`. `"redis"`: a Redis server. Its rows are those of this table
            alone, and gone when the table is.
        devices: Strings. Where the tables lie; keys are spread over several. `None`
            means the first GPU for `"hkv"`, else the CPU.
        init_size: Integer. For how many rows `"cuckoo"` makes room at first: growing
            stops training for up to a second, by the million rows.
        capacity: Integer. How many rows `"hkv"` may have, over all devices. Two
            thirds more than there are keys evict next to none.
        hbm: Bytes of GPU memory for the rows of each device: an integer, or a string
            such as `"4GB"`. Rows beyond lie in pinned memory of the host.
        redis: Dict. Settings of TFRA's `RedisTableConfig`, as in its JSON file, such as
            `{"redis_host_ip": ["10.0.0.5"], "redis_host_port": [6379]}`. By default, a
            single server on this host.

    Raises:
        ValueError: If an argument is out of range, or does not go with the others.

    Example:

    >>> TfraStorage("hkv", capacity=10_000_000, hbm="4GB").describe()
    'tfra_hkv'
    """

    def __init__(
        self,
        creator: str = "cuckoo",
        devices: Sequence[str] | None = None,
        init_size: int = 0,
        capacity: int | None = None,
        hbm: int | str | None = None,
        redis: Mapping[str, Any] | None = None,
    ) -> None:
        if creator not in CREATORS:
            known = ", ".join(f"'{known}'" for known in CREATORS)
            raise ValueError(
                f"`creator` must be one of {known}. Received: creator={creator!r}."
            )
        if isinstance(devices, str) or (devices is not None and not devices):
            raise ValueError(
                "`devices` must be a list of device names, such as ['/CPU:0'], or "
                f"None. Received: devices={devices!r}."
            )
        is_size = is_integer(init_size) and init_size >= 0
        if not is_size or (init_size and creator != "cuckoo"):
            raise ValueError(
                "`init_size` must be an integer of 0 or more, and goes with "
                f"creator='cuckoo'. Received: init_size={init_size!r}, "
                f"creator={creator!r}."
            )
        is_number = capacity is not None and is_integer(capacity) and capacity > 0
        is_sized = is_number and hbm is not None
        is_told = capacity is not None or hbm is not None
        if is_sized != (creator == "hkv") or is_told != is_sized:
            raise ValueError(
                "`capacity`, a positive number of rows, and `hbm`, their bytes of GPU "
                "memory, go with creator='hkv', which needs both: rows beyond leave. "
                f"Received: creator={creator!r}, capacity={capacity!r}, hbm={hbm!r}."
            )
        if redis is not None and creator != "redis":
            raise ValueError(
                "`redis` goes with creator='redis'. "
                f"Received: redis={redis!r}, creator={creator!r}."
            )
        self._creator = creator
        default = "/GPU:0" if creator == "hkv" else "/CPU:0"
        self._devices = [default] if devices is None else list(devices)
        if creator == "redis" and len(self._devices) > 1:
            raise ValueError(
                "creator='redis' has one table, on the server, and so takes one device "
                f"at most. Received: devices={devices!r}."
            )
        on_gpu = [device for device in self._devices if "GPU" in device.upper()]
        if on_gpu and creator != "hkv":
            raise ValueError(
                f"creator={creator!r} keeps no rows on a GPU: creator='hkv' does. "
                f"Received: devices={devices!r}."
            )
        self._init_size = int(init_size)
        self._capacity = None if capacity is None else int(capacity)
        self._hbm = hbm
        self._hbm_bytes = None if hbm is None else parse_bytes("hbm", hbm)
        self._redis = None if redis is None else dict(redis)

    def open(self, config: TableConfig, feature_seeds: Sequence[int]) -> TfraTable:
        """Makes an empty table.

        Args:
            config: `TableConfig`.
            feature_seeds: One integer per feature.

        Raises:
            ImportError: If TFRA is missing or does not load.
            ValueError: If the table has an admission, or there is no such device.
            tf.errors.UnavailableError: If there is no such server.
        """
        refuse_admission("TfraStorage", config)
        rows = self.open_rows(config)
        with tf.init_scope(), tf.device("/CPU:0"):
            trained = TrainedRows(
                config,
                feature_seeds,
                rows,
                self.device,
                None if rows.keeps_all else rows.size,
            )
            return TfraTable(config, trained, self.row_bytes(config))

    def open_rows(self, config: TableConfig) -> FusedRows:
        """Makes an empty table of rows alone; see `open`."""
        import_tfra()
        self._check_devices()
        self._check_init_size(config)
        # Counters lie on the CPU, and the tables where they were asked.
        with tf.init_scope(), tf.device("/CPU:0"):
            variable = self._make_variable(config)
            # A server would keep the rows of a table that is gone.
            outlives = self._creator == "redis"
            keeps_all = self._creator != "hkv"
            return FusedRows(
                variable, num_floats(config), config.name, keeps_all, outlives
            )

    @property
    def device(self) -> str:
        """Where rows are computed."""
        return self._devices[0]

    @property
    def capacity(self) -> int | None:
        """How many rows `"hkv"` may have; `None` of the others."""
        return self._capacity

    def row_bytes(self, config: TableConfig) -> int:
        """Returns the bytes of a key, its two marks and its row."""
        floats = num_floats(config) + NUM_COUNTERS
        # Wider rows lie outside of the table, behind a pointer with two lengths.
        outside = 24 if floats > _INLINE_FLOATS else 0
        return 8 + 2 + 4 * floats + outside

    def _make_variable(self, config: TableConfig) -> Any:
        capacity = self._capacity and -(-self._capacity // len(self._devices))
        # Two tables of one name would share rows, on a server too.
        name = re.sub(r"\W", "_", config.name, flags=re.ASCII) + "_" + uuid.uuid4().hex
        try:
            with kv_creator(
                self._creator, capacity, self._hbm_bytes, self._redis
            ) as creator:
                return import_tfra().Variable(
                    dim=num_floats(config) + NUM_COUNTERS,
                    devices=self._devices,
                    partitioner=partition_words,
                    name=f"tfctr_{name}",
                    initializer=0.0,
                    trainable=False,
                    checkpoint=False,
                    init_size=self._init_size,
                    kv_creator=creator,
                )
        except tf.errors.UnavailableError as error:
            raise tf.errors.UnavailableError(
                None,
                None,
                f"Table '{config.name}' found no Redis server. Start one, or say where "
                "it is: TfraStorage('redis', redis={'redis_host_ip': ['10.0.0.5'], "
                f"'redis_host_port': [6379]}}). Received: redis={self._redis}. "
                f"({error.message})",
            ) from error

    def forecast(self, config: TableConfig, num_keys: int) -> Forecast:
        """Returns what a table with `num_keys` keys will need.

        `ram_bytes` are of the CPU, the GPU or the server, wherever rows are; of a
        server, what it needs besides is left out.
        """
        row_bytes = self.row_bytes(config)
        places = num_keys
        if self._creator == "cuckoo":
            least = max(num_keys / _FULL, self._init_size, _LEAST_SLOTS)
            places = 2 ** math.ceil(math.log2(least))
        if self._capacity is not None:
            places = min(num_keys, self._capacity)
        return Forecast(num_keys, row_bytes, places * row_bytes, ssd_bytes=0)

    def describe(self) -> str:
        return f"tfra_{self._creator}"

    def get_config(self) -> dict[str, Any]:
        return {
            "creator": self._creator,
            "devices": self._devices,
            "init_size": self._init_size,
            "capacity": self._capacity,
            "hbm": self._hbm,
            "redis": self._redis,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TfraStorage":
        return cls(**config)

    def _check_init_size(self, config: TableConfig) -> None:
        """TFRA asks for the memory at once, and the process ends if there is none."""
        needed = self._init_size * self.row_bytes(config)
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > there:
            raise ValueError(
                f"Table '{config.name}' expects the memory of {self._init_size} rows "
                f"at once, {needed} bytes; this machine has {there}. Received: "
                f"init_size={self._init_size}. Make it smaller: tables grow."
            )

    def _check_devices(self) -> None:
        there = [device.name for device in tf.config.list_logical_devices()]
        for device in self._devices:
            wanted = tf.DeviceSpec.from_string(device)
            kind, index = wanted.device_type, wanted.device_index or 0
            if not any(name.endswith(f"{kind}:{index}") for name in there):
                raise ValueError(
                    f"There is no device {device!r} for creator={self._creator!r}. "
                    f"Received: devices={self._devices}, of {there}. Without a GPU, "
                    "use creator='cuckoo'."
                )


def num_floats(config: TableConfig) -> int:
    """Returns how many weights and slots a row has."""
    return config.dim + config.sparse_optimizer().num_slot_floats(config.dim)


def refuse_admission(storage: str, config: TableConfig) -> None:
    """Raises `ValueError` if the table has an admission."""
    if config.admission is not None:
        raise ValueError(
            f"{storage} has no admission: every id gets a row. Received: table "
            f"'{config.name}' with admission={config.admission}. Use TieredStorage, or "
            "leave `admission` out and let rows leave by an Expiry."
        )
