"""`StockTable`: the rows of a table as variables, read by built-in ops alone."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfctr.export.key_index import MULTIPLIERS, ROW_BITS, KeyIndex

QUANTIZATIONS = ("float16", "int8")
# Tables may be larger than the memory of a server's GPU.
_DEVICE = "CPU:0"
_DEFAULT_ROW, _ABSENT_ROW, _FIRST_ROW = 0, 1, 2


class StockTable(tf.Module):
    """Rows that change no more; reads as the table does that they were taken from.

    Args:
        name: String. For variables and messages.
        keys: int64 `(n, 2)`, feature and id, all distinct.
        rows: float32 `(n, dim)`.
        default_row: Floats `(dim,)`: what unknown keys read.
        quantize: `"float16"`, or `"int8"`: each row has a scale s of its own, and its
            weights are the multiples of s from -127 to 127 that are closest. `None`
            keeps float32.

    Raises:
        ValueError: If a weight is beyond float16.
    """

    def __init__(
        self,
        name: str,
        keys: npt.NDArray[np.int64],
        rows: npt.NDArray[np.float32],
        default_row: Sequence[float],
        quantize: str | None = None,
    ) -> None:
        super().__init__()
        self.label = name
        dim = rows.shape[1]
        path = re.sub("[^A-Za-z0-9_./-]", "_", name)
        # The same keys in any order make the same files.
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        index = KeyIndex.of(keys[order, 0], keys[order, 1], _FIRST_ROW)
        all_rows = np.empty((len(rows) + _FIRST_ROW, dim), np.float32)
        all_rows[_DEFAULT_ROW] = default_row
        all_rows[_ABSENT_ROW] = 0.0
        all_rows[_FIRST_ROW:] = rows[order]
        weights, scales = quantized(all_rows, quantize, name)

        def constant(values: npt.NDArray[np.generic], part: str) -> tf.Variable:
            with tf.init_scope(), tf.device(_DEVICE):
                return tf.Variable(values, trainable=False, name=f"{path}/{part}")

        self._seed = index.seed
        self._pilots = constant(index.pilots, "pilots")
        self._slots = constant(index.slots, "slots")
        self._rows = constant(weights, "rows")
        self._scales = None if scales is None else constant(scales, "scales")

    @property
    def num_rows(self) -> int:
        """How many keys have a row."""
        return int(self._rows.shape[0]) - _FIRST_ROW

    def read(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Returns rows, float32 `(n, dim)`; see `keras_layers.storage.Table.read`.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)` where p divides n. -1 is an absent key, of zeros.
        """
        with tf.device(_DEVICE):
            return self._read(ids, features)

    def _read(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        fixed = tf.get_static_value(features)
        # Key (i, j) is of feature j.
        repeats = tf.size(ids) // tf.maximum(tf.size(features), 1)
        ids = tf.reshape(ids, [repeats, tf.size(features)])
        features = tf.cast(features, tf.int64)
        row = self._find(ids, features)
        if fixed is None or (fixed < 0).any():
            row = tf.where(features < 0, tf.constant(_ABSENT_ROW, tf.int64), row)
        row = tf.reshape(row, [-1])
        rows = tf.gather(self._rows, row)
        if self._scales is not None:
            scales = tf.gather(self._scales, row)[:, tf.newaxis]
            rows = tf.cast(rows, tf.float32) * scales
        return tf.cast(rows, tf.float32)

    def _find(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Returns the rows of keys, int64 `(n / p, p)`; of unknown ones the default."""
        a, b, c = (tf.constant(number, tf.uint64) for number in MULTIPLIERS)
        half = tf.constant(32, tf.uint64)

        def upper(numbers: tf.Tensor) -> tf.Tensor:
            return tf.bitwise.right_shift(numbers, half)

        def reduce(hashes: tf.Tensor, size: int) -> tf.Tensor:
            of_size = upper(hashes) * tf.constant(size, tf.uint64)
            return tf.bitcast(upper(of_size), tf.int64)

        # As `key_hashes`.
        added = tf.bitcast(features + 1, tf.uint64) * a
        added += tf.constant(self._seed, tf.uint64)
        hashes = (tf.bitcast(ids, tf.uint64) + added) * b
        hashes = tf.bitwise.bitwise_xor(hashes, upper(hashes)) * c
        pilots = tf.gather(self._pilots, reduce(hashes, self._pilots.shape[0]))
        places = tf.bitwise.bitwise_xor(hashes, pilots) * b
        slots = tf.gather(self._slots, reduce(places, self._slots.shape[0]))
        id_there, word = slots[..., 0], slots[..., 1]
        # Other bits than those of the row are left if the feature is another one.
        row = tf.bitwise.bitwise_xor(word, (features + 1) * (1 << ROW_BITS))
        is_found = (id_there == ids) & (row < 1 << ROW_BITS)
        return tf.where(is_found, row, tf.constant(_DEFAULT_ROW, tf.int64))


def quantized(
    rows: npt.NDArray[np.float32], quantize: str | None, name: str
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float32] | None]:
    """Returns rows in the type they are exported in, and their scales if they have.

    Raises:
        ValueError: If a weight is beyond float16.
    """
    if quantize is None:
        return rows, None
    largest = np.abs(rows).max(axis=1)
    if quantize == "float16":
        limit = float(np.finfo(np.float16).max)
        if largest.max() > limit:
            raise ValueError(
                f"Rows in float16 hold weights up to {limit:g}. Received: table "
                f"'{name}' with a weight of {largest.max():g}. Export with "
                'quantize="int8", which has a scale for each row, or quantize=None.'
            )
        return rows.astype(np.float16), None
    scales = (largest / 127).astype(np.float32)
    # A row of zeros has the scale 0, and none is divided by it.
    steps = rows / np.where(scales > 0, scales, 1)[:, np.newaxis]
    return np.rint(steps).astype(np.int8), scales
