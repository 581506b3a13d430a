"""Keys of TFRA's tables: one word of an id and its feature."""

import numpy as np
import tensorflow as tf

from keras_layers.storage.tfra.fused_rows import partition_words, to_ids, to_words


def test_keys_spread_over_devices_as_ever():
    # Low half, xor high half, less the sign, modulo: by hand.
    words = [5, -7, 2**31 + 5, 2**40 + 1, 0, -1, -(2**63), 2**63 - 1]
    expected = {1: [0] * 8, 3: [2, 0, 2, 2, 0, 0, 0, 0], 8: [5, 6, 5, 1, 0, 0, 0, 0]}
    for num_devices, devices in expected.items():
        found = partition_words(tf.constant(words, tf.int64), num_devices)
        assert found.numpy().tolist() == devices
        assert found.dtype == tf.int32


def test_words_bring_back_ids():
    ids = tf.constant([0, 1, -1, 2**63 - 1, -(2**63)] * 2, tf.int64)
    features = tf.constant([0] * 5 + [999] * 5)
    words = to_words(ids, features)
    np.testing.assert_array_equal(to_ids(words, features), ids)
    assert len(set(words.numpy().tolist())) == 10


def test_ids_of_52_bits_in_a_thousand_features_never_meet():
    # Two meet only if the patterns of their features have equal bits above.
    patterns = to_words(tf.zeros([1000], tf.int64), tf.range(1000))
    assert len(np.unique(patterns.numpy() >> 52)) == 1000
