"""Samples are counted as a set of pairs counts them."""

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import sample_counts


@pytest.mark.parametrize("n", [0, 1, 50, 20_000])
@pytest.mark.parametrize("num_features", [1, 3])
def test_the_first_of_equal_keys_in_a_sample_counts(n, num_features):
    random = np.random.default_rng(n)
    n -= n % num_features
    ids = random.integers(-5, 5, n) * 2**60
    # Absent keys too; samples in no order, as those of several features are.
    features = random.integers(-1, 2, num_features).astype(np.int32)
    samples = random.integers(0, max(n // 4, 1), n).astype(np.int32)
    seen = set()
    expected = []
    for place, (id, sample) in enumerate(zip(ids, samples, strict=True)):
        key = (features[place % num_features], id, sample)
        expected.append(int(key[0] >= 0 and key not in seen))
        seen.add(key)
    found = sample_counts(tf.constant(ids), tf.constant(features), tf.constant(samples))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("features", "samples", "message"),
    [
        ([0], [0, 1], "`samples` must have one number for each of the 3 ids"),
        ([0], [[0, 1, 2]], "Received: samples.shape=.1,3."),
        ([-2], [0, 1, 2], "`features` must lie in"),
        ([0, 1], [0, 1, 2], "a multiple of the number of features"),
    ],
)
def test_bad_arguments_are_refused(features, samples, message):
    ids = tf.constant([1, 2, 3], tf.int64)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        sample_counts(ids, tf.constant(features), tf.constant(samples, tf.int32))
