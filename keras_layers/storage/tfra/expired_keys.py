"""Which rows an `Expiry` removes, as `cc/store/embedding_store_expiry.cc` chooses."""

import tensorflow as tf

from keras_layers.expiry import Expiry
from keras_layers.storage.tfra.initial_rows import mix64
from keras_layers.storage.tfra.keyed_rows import DistinctKeys
from tfctr_ops import Rows


def expired_keys(
    expiry: Expiry, rows: Rows, dim: int, seeds: tf.Tensor, step: tf.Tensor
) -> DistinctKeys:
    """Returns the keys of the rows that leave.

    Args:
        expiry: `Expiry`.
        rows: All rows.
        dim: Integer. How many of their values are weights.
        seeds: int64 `(num_features,)`.
        step: int64 scalar. How many updates the table has seen.
    """
    leaves = tf.zeros_like(rows.ids, tf.bool)
    if expiry.unused_steps is not None:
        leaves |= step - rows.last_steps > expiry.unused_steps
    if expiry.min_norm is not None:
        squares = tf.square(tf.cast(rows.values[:, :dim], tf.float64))
        leaves |= tf.reduce_sum(squares, axis=1) < expiry.min_norm**2
    if expiry.max_rows is not None:
        stay = tf.boolean_mask(tf.range(tf.size(rows.ids)), tf.logical_not(leaves))
        ages = tf.gather(_ages(rows, seeds), stay)
        surplus = tf.maximum(tf.size(stay) - min(expiry.max_rows, 2**31 - 1), 0)
        oldest = tf.gather(stay, tf.argsort(ages, stable=True)[:surplus])
        leaves = tf.tensor_scatter_nd_update(
            leaves, oldest[:, None], tf.fill([surplus], True)
        )
    return DistinctKeys(
        tf.boolean_mask(rows.ids, leaves), tf.boolean_mask(rows.features, leaves)
    )


def _ages(rows: Rows, seeds: tf.Tensor) -> tf.Tensor:
    """Less for rows that leave earlier; nearly always another for another row.

    Of rows with the same last update, the key and the seed of its feature settle it.
    """
    seed = tf.bitcast(tf.gather(seeds, rows.features), tf.uint64)
    tie_break = mix64(
        tf.bitwise.bitwise_xor(seed, mix64(tf.bitcast(rows.ids, tf.uint64)))
    )
    high_half = tf.bitwise.right_shift(tie_break, tf.constant(32, tf.uint64))
    return rows.last_steps * 2**32 + tf.cast(high_half, tf.int64)
