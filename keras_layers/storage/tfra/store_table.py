"""`StoreTable`: a table of TFRA in an embedding store."""

import dataclasses
import functools
import math
import os
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.lookup_ops import LookupInterface

from keras_layers.storage.tfra.table_saveable import TableSaveable
from keras_layers.storage.tfra.value_format import ValueFormat
from tfctr_ops import MemoryBudget, RowInitializer, SparseOptimizer, StoreConfig
from tfctr_ops.eager_call import call_eagerly
from tfctr_ops.library import load

_FEATURE = (0,)


@dataclasses.dataclass(frozen=True)
class Tiers:
    """Where the rows of tables live: what `TieredTableCreator` was told.

    Args:
        budget: `MemoryBudget` that the tables share.
        eviction_policy: As in `StoreConfig`, and so are the next two.
        ssd_directory: See `eviction_policy`.
        ssd_limit_bytes: See `eviction_policy`.
    """

    budget: MemoryBudget
    eviction_policy: str
    ssd_directory: str | None
    ssd_limit_bytes: int | None


class StoreTable(LookupInterface):
    """Maps int64 keys to rows, as `de.Variable` and its optimizers ask of a table.

    Keys have any shape, values that of the keys and `(dim,)`. In a graph, the methods
    return operations where there is nothing to return.

    Args:
        tiers: `Tiers`.
        value_dtype: `tf.float32` or `tf.int32`.
        default_value: Tensor `(dim,)`. What keys read that are not there.
        name: String, for messages and for files.
        checkpoint: Boolean. Whether checkpoints hold the rows.
        saveable: Function of a table and of names: says how checkpoints do so. `None`
            means as tensors.
    """

    def __init__(
        self,
        tiers: Tiers,
        value_dtype: tf.DType,
        default_value: tf.Tensor,
        name: str,
        checkpoint: bool,
        saveable: Callable[..., Any] | None,
    ) -> None:
        super().__init__(tf.int64, value_dtype)
        self._tiers = tiers
        self._default_value = tf.convert_to_tensor(default_value, value_dtype)
        self._format = ValueFormat(value_dtype, int(self._default_value.shape[-1]))
        self._name = name
        self._checkpoint = checkpoint
        self._saveable_fn = saveable or TableSaveable
        # The copy in a SavedModel, which TFRA's loaders ask for.
        self._new_obj_trackable: StoreTable | None = None
        self._ops = load()
        with tf.init_scope():
            self._resource_handle = self._create_resource()
        closing = weakref.finalize(self, _close, self._ops, self._resource_handle)
        closing.atexit = False

    def _create_resource(self) -> tf.Tensor:
        tiers = self._tiers
        width = self._format.width
        config = StoreConfig(
            table=self._name,
            dim=width,
            # The rows have no slots: TFRA keeps those in tables of their own.
            optimizer=SparseOptimizer("sgd"),
            initializer=RowInitializer("constant"),
            feature_seeds=(0,),
            # Rows are finite, so this is how keys read that are not there.
            default_row=(math.nan,) * width,
            eviction_policy=tiers.eviction_policy,
            ssd_directory=tiers.ssd_directory,
            ssd_limit_bytes=tiers.ssd_limit_bytes,
        )
        budget = tiers.budget.handle
        if not tf.executing_eagerly():
            # In a SavedModel, which has resources of its own.
            limit = tiers.budget.limit_bytes
            budget = self._ops.tfctr_memory_budget(
                limit_bytes=-1 if limit is None else limit
            )
        return self._ops.tfctr_embedding_store(budget, **config.op_attributes())

    def _export_to_saved_model_graph(
        self, object_map: Any, tensor_map: Any, **options: Any
    ) -> Any:
        if self._saveable_fn is not TableSaveable:
            # TFRA would write the files, and its loader would not look for them.
            raise ValueError(
                "A SavedModel holds the rows of a tiered table as tensors. Received: "
                f"the table '{self._name}' with a saver, which writes files that "
                "`tf.saved_model.load` never reads. Build the model with a "
                "TieredTableCreator without `saver`, give each `de.Variable` its rows "
                "by `load_from_file_system`, and save that."
            )
        tensors = super()._export_to_saved_model_graph(
            object_map, tensor_map, **options
        )
        self._new_obj_trackable = object_map[self]
        return tensors

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        self._new_obj_trackable = None
        if not self._checkpoint:
            return {}
        names = {"name": self._name, "full_name": self._name}
        return {"table": functools.partial(self._saveable_fn, table=self, **names)}

    @property
    def name(self) -> str:
        return self._name

    def lookup(
        self,
        keys: tf.Tensor,
        dynamic_default_values: tf.Tensor | None = None,
        return_exists: bool = False,
        name: str | None = None,
    ) -> Any:
        """Returns the values of keys, and if asked to, which of them are there.

        Args:
            keys: int64, any shape; there may be none.
            dynamic_default_values: What keys read that are not there: a scalar,
                `(dim,)`, or one row per key. `None` means the table's own.
            return_exists: Boolean.
            name: String, for the operation.
        """
        with tf.name_scope(name or "lookup"):
            keys = tf.convert_to_tensor(keys, tf.int64)
            values, exists = self._find(
                tf.reshape(keys, [-1]),
                self._default_value
                if dynamic_default_values is None
                else dynamic_default_values,
            )
            if keys.shape.rank != 1:
                shape = tf.shape(keys)
                values = tf.reshape(values, tf.concat([shape, [self._format.dim]], 0))
                exists = tf.reshape(exists, shape)
        return (values, exists) if return_exists else values

    def _find(self, keys: tf.Tensor, defaults: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the values `(n, dim)` of keys `(n,)`, and which are there `(n,)`."""
        handle, width = self.resource_handle, self._format.width
        if self._tiers.ssd_directory is not None:
            # Brings rows up, which a read leaves on disk: the insert of the same keys
            # would read them again.
            self._ops.tfctr_embedding_store_prefetch(handle, keys, _FEATURE)
        step = tf.constant(-1, tf.int64)
        floats = self._ops.tfctr_embedding_store_read(
            handle, keys, _FEATURE, step, dim=width
        )
        is_there = tf.math.is_finite(floats[:, :1])
        if self._value_dtype != tf.float32:
            floats = tf.where(is_there, floats, 0.0)
        values = self._format.from_floats(floats)
        defaults = tf.convert_to_tensor(defaults, self._value_dtype)
        values = tf.where(is_there, values, defaults)
        return values, is_there[:, 0]

    def insert(
        self, keys: tf.Tensor, values: tf.Tensor, name: str | None = None
    ) -> Any:
        """Sets the values of keys; of equal keys, the last wins.

        Raises:
            tf.errors.InvalidArgumentError: If a value is NaN or infinite.
        """
        with tf.name_scope(name or "insert"):
            values = tf.convert_to_tensor(values, self._value_dtype)
            keys = tf.reshape(tf.convert_to_tensor(keys, tf.int64), [-1])
            return self._write(keys, values)

    def _write(self, keys: tf.Tensor, values: tf.Tensor) -> Any:
        floats = self._format.to_floats(values)
        return self._ops.tfctr_embedding_store_write(
            self.resource_handle, keys, _FEATURE, floats
        )

    def accum(
        self,
        keys: tf.Tensor,
        values_or_deltas: tf.Tensor,
        exists: tf.Tensor,
        name: str | None = None,
    ) -> Any:
        """Adds to the values of keys that exist, and sets those of keys that do not.

        A key that has come or gone since `exists` was looked up is passed over.

        Args:
            keys: int64, distinct.
            values_or_deltas: Values to set, or to add.
            exists: Boolean, one per key: whether the key was there.
            name: String, for the operation.
        """
        with tf.name_scope(name or "accum"):
            keys = tf.reshape(tf.convert_to_tensor(keys, tf.int64), [-1])
            deltas = tf.convert_to_tensor(values_or_deltas, self._value_dtype)
            deltas = tf.reshape(deltas, [-1, self._format.dim])
            zero = tf.zeros([], self._value_dtype)
            values, is_there = self._find(keys, zero)
            agrees = tf.equal(is_there, tf.reshape(exists, [-1]))
            return self._write(
                tf.boolean_mask(keys, agrees), tf.boolean_mask(values + deltas, agrees)
            )

    def remove(self, keys: tf.Tensor, name: str | None = None) -> Any:
        """Removes keys; unknown ones are ignored."""
        with tf.name_scope(name or "remove"):
            keys = tf.reshape(tf.convert_to_tensor(keys, tf.int64), [-1])
            return self._ops.tfctr_embedding_store_remove(
                self.resource_handle, keys, _FEATURE
            )

    def clear(self, name: str | None = None) -> Any:
        """Removes all keys."""
        with tf.name_scope(name or "clear"):
            none = tf.zeros([0, self._format.dim], self._value_dtype)
            return self.replace(tf.zeros([0], tf.int64), none)

    def size(self, name: str | None = None) -> tf.Tensor:
        """Returns how many keys there are: int64 scalar."""
        with tf.name_scope(name or "size"):
            stats = self._ops.tfctr_embedding_store_stats(self.resource_handle)
            return stats[1]

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys `(n,)` and their values `(n, dim)`, in no order."""
        with tf.name_scope(name or "export"):
            ids, _, floats, _, _ = self._ops.tfctr_embedding_store_export(
                self.resource_handle, num_floats=self._format.width
            )
            return ids, self._format.from_floats(floats)

    def replace(self, keys: tf.Tensor, values: tf.Tensor) -> Any:
        """Replaces all keys by those that `export` gave."""
        zeros = tf.zeros_like(keys)
        return self._ops.tfctr_embedding_store_import(
            self.resource_handle,
            keys,
            tf.cast(zeros, tf.int32),
            self._format.to_floats(values),
            zeros,
            zeros,
            tf.constant(0, tf.int64),
        )

    def save_to_file_system(
        self,
        dirpath: Any,
        file_name: str | None = None,
        dirpath_env: str = "TFRA_SAVED_KV",
        append_to_file: bool = False,
        buffer_size: int = 0,
        name: str | None = None,
    ) -> Any:
        """Writes the files of TFRA's own tables: `<file_name>-keys` and `-values`.

        Args:
            dirpath: String or scalar tensor; made if need be.
            file_name: String. `None` means the table's name.
            dirpath_env: Name of a variable of the environment that, if it is set, says
                the directory instead.
            append_to_file: Boolean. Whether the rows go behind those of the files.
            buffer_size: Not used: rows pass in small parts whatever it says.
            name: String, for the operation.
        """
        with tf.name_scope(name or "save_to_file_system"):
            return self._ops.tfctr_embedding_store_write_row_files(
                self.resource_handle,
                _prefix(dirpath, dirpath_env, file_name or self._name),
                values=self._format.in_files,
                append=append_to_file,
            )

    def load_from_file_system(
        self,
        dirpath: Any,
        file_name: str | None = None,
        dirpath_env: str = "TFRA_SAVED_KV",
        load_entire_dir: bool = False,
        buffer_size: int = 0,
        name: str | None = None,
    ) -> Any:
        """Replaces all rows by those of such files, whoever wrote them.

        Args:
            dirpath: As for `save_to_file_system`, and so are the next two.
            file_name: See `dirpath`.
            dirpath_env: See `dirpath`.
            load_entire_dir: Boolean. Whether to read the files of all shards of the
                table, `<name>_mht_XofY...`, instead of one.
            buffer_size: Not used.
            name: String, for the operation.
        """
        with tf.name_scope(name or "load_from_file_system"):
            prefix = _prefix(dirpath, dirpath_env, file_name or self._name)
            prefixes = tf.reshape(prefix, [1])
            if load_entire_dir:
                # The name may have characters that a pattern takes for others.
                pattern = tf.strings.regex_replace(prefix, r"([\[\]*?\\])", r"\\\1")
                pattern = tf.strings.regex_replace(pattern, "_mht_[^/]*$", "_mht_*of*")
                files = tf.io.matching_files(tf.strings.join([pattern, "-keys"]))
                prefixes = tf.strings.regex_replace(files, "-keys$", "")
                # Without any, the file of the table itself is missing, and says so.
                prefixes = tf.cond(
                    tf.size(prefixes) > 0, lambda: prefixes, lambda: [prefix]
                )
            return self._ops.tfctr_embedding_store_read_row_files(
                self.resource_handle,
                prefixes,
                values=self._format.in_files,
            )


def _prefix(dirpath: Any, dirpath_env: str, file_name: str) -> tf.Tensor:
    directory = os.environ.get(dirpath_env) or dirpath
    return tf.strings.join([directory, file_name], separator="/")


def _close(ops: Any, handle: tf.Tensor) -> None:
    call_eagerly(lambda: ops.tfctr_embedding_store_close(handle))
