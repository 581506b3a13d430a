"""`TableSaveable`: the rows of a table as two tensors of a checkpoint."""

from typing import Any

import tensorflow as tf
from tensorflow.python.training.saver import BaseSaverBuilder


class TableSaveable(BaseSaverBuilder.SaveableObject):
    """Saves and restores what `export` gives, under the names of TFRA's own tables.

    Args:
        table: `StoreTable`.
        name: String. Prefix of the names.
        full_name: Not used.
    """

    def __init__(self, table: Any, name: str, full_name: str = "") -> None:
        self._table = table
        self._values: tf.Tensor | None = None
        spec = BaseSaverBuilder.SaveSpec
        # Functions: rows are exported when they are saved, not to make this object.
        # In a SavedModel the name is a tensor, which no f-string takes.
        specs = [
            spec(self._keys, "", name + "-keys", tf.int64, "/CPU:0"),
            spec(
                self._values_of_keys, "", name + "-values", table.value_dtype, "/CPU:0"
            ),
        ]
        super().__init__(table, specs, name)

    def _keys(self) -> tf.Tensor:
        keys, self._values = self._table.export()
        return keys

    def _values_of_keys(self) -> tf.Tensor:
        # Of the export that gave the keys, which are asked for first.
        values, self._values = self._values, None
        return self._table.export()[1] if values is None else values

    def restore(
        self, restored_tensors: Any, restored_shapes: Any, name: str | None = None
    ) -> Any:
        return self._table.replace(*restored_tensors)
