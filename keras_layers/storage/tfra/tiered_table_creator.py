"""`TieredTableCreator`: memory and SSD for the tables of existing TFRA models."""

import os
from typing import Any

import tensorflow as tf

from keras_layers.storage.byte_size import parse_bytes
from keras_layers.storage.tfra.import_guard import import_tfra
from keras_layers.storage.tfra.store_table import StoreTable, Tiers
from keras_layers.storage.tfra.value_format import VALUE_DTYPES
from keras_layers.storage.tiered_storage import TieredStorage
from tfctr_ops import MemoryBudget

KVCreator: Any = import_tfra().KVCreator


class TieredTableCreator(KVCreator):
    """Keeps the tables of a TFRA model in memory, and on SSD what has no place there.

    For the argument `kv_creator` of TFRA's layers and of `de.Variable`, with
    `devices=["/CPU:0"]`. The tables of the parameters, of the optimizer's slots and of
    restrict policies that are made by one creator share its memory. Rows must be
    finite: to insert a NaN is an error.

    Args:
        ram: Bytes of rows in memory: an integer, or a string such as `"4GB"`. The index
            comes on top, about 10 to 25 bytes a key and table. `None` means no limit.
        ssd: String or path. Directory on a fast disk, for scratch: each table has a
            locked directory in it, which is gone when the table is. `None`: rows live
            in memory only, and beyond `ram` new keys are an error.
        ssd_limit: Bytes that a table may use in `ssd`. `None` means no limit.
        eviction_policy: String. With `ssd`, which rows go there first: `"clock"`,
            `"lru"` or `"lfu"`, as in `TieredStorage`. `None` means `"clock"`.
        saver: `de.FileSystemSaver`, to write rows to files of their own beside a
            checkpoint, in small parts. `None`: they are tensors of the checkpoint, and
            pass through memory whole.

    Raises:
        ValueError: If an argument is out of range, or does not go with the others.

    Example:

    >>> kv_creator = TieredTableCreator(ram="4GB", ssd="/nvme/tables")
    >>> kv_creator.get_config()["ram"]
    '4GB'
    """

    def __init__(
        self,
        ram: int | str | None = None,
        ssd: str | os.PathLike[str] | None = None,
        ssd_limit: int | str | None = None,
        eviction_policy: str | None = None,
        saver: Any = None,
    ) -> None:
        super().__init__(config=None, saver=saver)
        if ssd is None and eviction_policy not in (None, "none"):
            raise ValueError(
                "`eviction_policy` says which rows go to `ssd`: without one they would "
                "be lost, and those of a key and of its slots at different times. "
                f"Received: ssd=None, eviction_policy={eviction_policy!r}."
            )
        # Checks the arguments.
        storage = TieredStorage(ram, ssd, ssd_limit, eviction_policy)
        self._arguments = {
            name: storage.get_config()[name]
            for name in ("ram", "ssd", "ssd_limit", "eviction_policy")
        }
        self._tiers = Tiers(
            MemoryBudget(None if ram is None else parse_bytes("ram", ram)),
            "none" if ssd is None else eviction_policy or "clock",
            self._arguments["ssd"],
            None if ssd_limit is None else parse_bytes("ssd_limit", ssd_limit),
        )

    def create(
        self,
        key_dtype: Any = None,
        value_dtype: Any = None,
        default_value: Any = None,
        name: str = "TieredTable",
        checkpoint: bool = True,
        init_size: int | None = None,
        config: Any = None,
        device: str | None = None,
        shard_saveable_object_fn: Any = None,
    ) -> StoreTable:
        """Makes a table; `de.Variable` calls it.

        Args:
            key_dtype: `tf.int64`.
            value_dtype: `tf.float32` or `tf.int32`.
            default_value: Tensor `(dim,)`.
            name: String.
            checkpoint: Boolean. Whether checkpoints hold the rows.
            init_size: Not used: tables grow without a pause.
            config: Not used.
            device: String. A CPU.
            shard_saveable_object_fn: As the saver gives it.

        Raises:
            TypeError: If there is no such table for these dtypes.
            ValueError: If the device is not a CPU.
            RuntimeError: In a graph of TensorFlow 1.
        """
        key_dtype, value_dtype = tf.as_dtype(key_dtype), tf.as_dtype(value_dtype)
        if key_dtype != tf.int64 or value_dtype not in VALUE_DTYPES:
            raise TypeError(
                "`TieredTableCreator` makes tables of int64 keys and float32 or int32 "
                f"values. Received: key_dtype={key_dtype.name}, "
                f"value_dtype={value_dtype.name}, for the table '{name}'."
            )
        if "GPU" in (device or "").upper():
            raise ValueError(
                "`TieredTableCreator` makes tables in the memory of the host. "
                f"Received: device='{device}', for the table '{name}'. Give the layer "
                "or variable devices=['/CPU:0']."
            )
        with tf.init_scope():
            if not tf.executing_eagerly():
                raise RuntimeError(
                    "`TieredTableCreator` needs eager execution, as in TensorFlow 2. "
                    f"Received: a graph of TensorFlow 1, for the table '{name}'."
                )
        return StoreTable(
            self._tiers,
            value_dtype,
            default_value,
            name,
            checkpoint,
            shard_saveable_object_fn,
        )

    def get_config(self) -> dict[str, Any]:
        return {**self._arguments, "saver": self.saver}
