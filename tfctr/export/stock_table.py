"""`StockTable`: the rows of a table as variables, read by built-in ops alone."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfctr.export.key_index import MULTIPLIERS, ROW_BITS, KeyIndex, seeded_multipliers

QUANTIZATIONS = ("float16", "int8")
# Tables may be larger than the memory of a server's GPU.
_DEVICE = "CPU:0"
# Of no key; those of keys follow.
_DEFAULT_ROW, _ABSENT_ROW, FIRST_ROW = 0, 1, 2


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
        index = KeyIndex.of(keys[order, 0], keys[order, 1], FIRST_ROW)
        all_rows = np.empty((len(rows) + FIRST_ROW, dim), np.float32)
        all_rows[_DEFAULT_ROW] = default_row
        all_rows[_ABSENT_ROW] = 0.0
        all_rows[FIRST_ROW:] = rows[order]
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
        return int(self._rows.shape[0]) - FIRST_ROW

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
        width = tf.size(features) if fixed is None else len(fixed)
        # Key (i, j) is of feature j.
        ids = tf.reshape(ids, [tf.size(ids) // tf.maximum(width, 1), width])
        row = self._find(ids, features if fixed is None else fixed)
        if fixed is None or (fixed < 0).any():
            row = tf.where(features < 0, tf.constant(_ABSENT_ROW, tf.int64), row)
        row = tf.reshape(row, [-1])
        rows = tf.gather(self._rows, row)
        if self._scales is not None:
            scales = tf.gather(self._scales, row)[:, tf.newaxis]
            rows = tf.cast(rows, tf.float32) * scales
        return tf.cast(rows, tf.float32)

    def _find(
        self, ids: tf.Tensor, features: tf.Tensor | npt.NDArray[np.int32]
    ) -> tf.Tensor:
        """Returns the rows of keys, int64 `(n / p, p)`; of unknown ones the default.

        Most of the time goes to memory that is not in a cache, and to starting ops:
        what features add is computed here, if they are known.
        """
        num_pilots, num_slots = self._pilots.shape[0], self._slots.shape[0]
        feature_multiplier, multiplier = seeded_multipliers(self._seed)
        added, words = _of_features(features, feature_multiplier)
        hashes = (tf.bitcast(ids, tf.uint64) + added) * _uint64(multiplier)
        buckets = _shifted(hashes, 65 - num_pilots.bit_length())
        pilots = tf.gather(self._pilots, tf.bitcast(buckets, tf.int64))
        mixed = tf.bitwise.bitwise_xor(hashes, pilots) * _uint64(MULTIPLIERS[2])
        places = _shifted(_shifted(mixed, 32) * _uint64(num_slots), 32)
        slots = tf.gather(self._slots, tf.bitcast(places, tf.int64))
        # Twice as fast as slots[..., 0].
        id_there, word = tf.unstack(slots, axis=-1)
        # Other bits than those of the row are left if the feature is another one.
        row = tf.bitwise.bitwise_xor(word, words)
        is_found = (id_there == ids) & (row < 1 << ROW_BITS)
        return tf.where(is_found, row, tf.constant(_DEFAULT_ROW, tf.int64))


def _of_features(
    features: tf.Tensor | npt.NDArray[np.int32], multiplier: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what features, of a tensor or known ones, add to ids and to words."""
    if isinstance(features, np.ndarray):
        numbers = features.astype(np.int64) + 1
        added = numbers.view(np.uint64) * np.uint64(multiplier)
        return tf.constant(added), tf.constant(numbers << ROW_BITS)
    numbers = tf.cast(features, tf.int64) + 1
    added = tf.bitcast(numbers, tf.uint64) * _uint64(multiplier)
    return added, numbers * (1 << ROW_BITS)


def _uint64(number: int) -> tf.Tensor:
    return tf.constant(number, tf.uint64)


def _shifted(numbers: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(numbers, _uint64(bits))


def quantized(
    rows: npt.NDArray[np.float32], quantize: str | None, name: str
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float32] | None]:
    """Returns rows in the type they are exported in, and their scales if they have.

    Raises:
        ValueError: If a weight is beyond float16, or none that can be rounded.
    """
    if quantize is None:
        return rows, None
    largest = np.abs(rows).max(axis=1)
    if not np.isfinite(largest).all():
        raise ValueError(
            f"Rows in {quantize} are rounded from finite weights. Received: table "
            f"'{name}' with NaN or infinity in {np.sum(~np.isfinite(largest))} rows. "
            "Export a checkpoint from before the training diverged."
        )
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
    # Scales that are denormal are rounded themselves.
    return np.rint(steps).clip(-127, 127).astype(np.int8), scales
