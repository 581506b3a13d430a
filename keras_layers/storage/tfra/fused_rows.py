"""`FusedRows`: whole rows in TFRA's tables, one value per key.

A value is a whole row: `[weights | slots | feature | updates | last update]`.
"""

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_layers.expiry import Expiry
from keras_layers.storage.tfra.expired_keys import expired_keys
from keras_layers.storage.tfra.keyed_rows import (
    NUM_COUNTERS,
    DistinctKeys,
    FoundRows,
    KeyedRows,
    counters_of,
    whole_rows,
)
from tfctr_ops import Rows
from tfctr_ops.eager_call import call_eagerly

_GOLDEN = 0x9E3779B97F4A7C15


def to_words(ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    """Returns what stands for keys in a table of 64-bit keys: int64 `(n,)`.

    For one feature this is a bijection of the ids. Keys of two features meet when their
    ids differ by just the bits in which the features' patterns do. Multiples of the
    golden ratio differ in their highest bits: with F features, ids of less than about
    `62 - log2(F)` bits never meet. Of n ids that use all 64 bits, as hashes do, a pair
    meets with odds of at most n² / 2⁶⁵: 0.03 % at a hundred million. `FusedRows.find`
    notices it.
    """
    patterns = (tf.cast(features, tf.uint64) + 1) * tf.constant(_GOLDEN, tf.uint64)
    return tf.bitwise.bitwise_xor(ids, tf.bitcast(patterns, tf.int64))


def to_ids(words: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    """Returns the ids of which `to_words` made `words`."""
    return to_words(words, features)


def partition_words(words: tf.Tensor, num_devices: int) -> tf.Tensor:
    """Returns the device of each word, int32 in [0, num_devices), on every build.

    TFRA's own choice differs between builds of TensorFlow with and without CUDA.
    """
    folded = tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, 32))
    positive = tf.bitwise.bitwise_and(folded, tf.constant(0x7FFFFFFF, tf.int64))
    return tf.cast(tf.math.floormod(positive, num_devices), tf.int32)


class FusedRows(KeyedRows):
    """The rows of a table, each found and put by one operation of the table.

    Args:
        variable: TFRA's `Variable` of `num_floats + 3` floats per key, empty.
        num_floats: Integer. Weights and slots of a row.
        table: String. Name of the table, for messages.
        keeps_all: Boolean. Whether rows leave only when they are told to.
        outlives: Boolean. Whether the rows would outlive this process.
    """

    def __init__(
        self,
        variable: Any,
        num_floats: int,
        table: str,
        keeps_all: bool,
        outlives: bool,
    ) -> None:
        self._variable = variable
        self.num_floats = num_floats
        self._table = table
        self.keeps_all = keeps_all
        # Of itself, TensorFlow keeps the tables for as long as the process lives.
        closing = weakref.finalize(self, _destroy, list(variable.tables), outlives)
        closing.atexit = outlives

    def find(self, keys: DistinctKeys, to_train: bool = False) -> FoundRows:
        rows, exists = self._variable.lookup(_words(keys), return_exists=True)
        rows = tf.ensure_shape(rows, [None, self.num_floats + NUM_COUNTERS])
        exists = tf.reshape(exists, [-1])
        features, counts, last_steps = counters_of(rows)
        meets = tf.logical_and(exists, tf.not_equal(features, keys.features))
        check = tf.debugging.Assert(
            tf.logical_not(tf.reduce_any(meets)),
            [
                f"Two ids of table '{self._table}' have the same key in TFRA's table, "
                "which keeps 64 bits of feature and id together. Use TieredStorage, "
                "whose keys are exact, or give the features tables of their own. "
                "Received: the ids",
                tf.boolean_mask(keys.ids, meets),
            ],
        )
        with tf.control_dependencies([] if check is None else [check]):
            values = tf.identity(rows)
        return FoundRows(values, counts, last_steps, exists)

    def upsert(self, keys: DistinctKeys, rows: tf.Tensor) -> None:
        self._variable.upsert(_words(keys), rows)

    def remove(self, keys: DistinctKeys) -> None:
        self._variable.remove(_words(keys))

    def export(self) -> Rows:
        words, rows = self._variable.export()
        rows = tf.ensure_shape(rows, [None, self.num_floats + NUM_COUNTERS])
        features, counts, last_steps = counters_of(rows)
        return Rows(
            to_ids(words, features),
            features,
            rows[:, : self.num_floats],
            tf.cast(last_steps, tf.int64),
            tf.cast(counts, tf.int64),
        )

    def replace(self, rows: Rows, step: int) -> None:
        self._variable.clear()
        counts, last_steps = (
            tf.cast(column, tf.int32) for column in (rows.counts, rows.last_steps)
        )
        keys = DistinctKeys(rows.ids, rows.features)
        self.upsert(keys, whole_rows(rows.features, [rows.values], counts, last_steps))
        if self.keeps_all and int(self.size()) != len(rows.ids):
            raise ValueError(
                f"Table '{self._table}' keeps 64 bits of feature and id together, and "
                f"has room for {int(self.size())} of these rows: the keys of others "
                f"are the same there. Received: {len(rows.ids)} rows. Use "
                "TieredStorage, whose keys are exact, or give the features tables of "
                "their own."
            )

    def clear(self) -> None:
        """Removes all rows."""
        self._variable.clear()

    def expire(
        self, expiry: Expiry, dim: int, seeds: tf.Tensor, step: tf.Tensor
    ) -> tf.Tensor:
        keys = expired_keys(expiry, self.export(), dim, seeds, step)
        self.remove(keys)
        return tf.size(keys.ids, out_type=tf.int64)

    def size(self) -> tf.Tensor:
        # TFRA's variable keeps the tensor of the first graph that asks it.
        return tf.add_n([table.size() for table in self._variable.tables])

    def stats(self) -> dict[str, int]:
        return {}


def _words(keys: DistinctKeys) -> tf.Tensor:
    known = keys.words
    return to_words(keys.ids, keys.features) if known is None else known


def _destroy(tables: Sequence[Any], outlives: bool) -> None:
    def destroy() -> None:
        for table in tables:
            handle = table.resource_handle
            if outlives:
                # A server that is gone holds nothing either.
                with contextlib.suppress(tf.errors.OpError):
                    table.clear()
            tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)

    call_eagerly(destroy)
