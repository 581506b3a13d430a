"""`RowInitializer`: its documented formula, in stock TensorFlow ops.

So an export, or a table that is not ours, can start rows exactly as the store does.
"""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import RowInitializer

INT64 = np.iinfo(np.int64)
FEATURE = tf.constant([0])
LAWS = {
    "uniform": RowInitializer("uniform", -0.05, 0.1),
    "normal": RowInitializer("normal", 0.01, 0.05),
    "truncated_normal": RowInitializer("truncated_normal", 0.01, 0.05),
    "standard normal": RowInitializer("normal", 0.0, 1.0),
}


def starts(make_store, law, ids, dim, seed=1):
    store = make_store(dim=dim, initializer=law, feature_seeds=(seed,))
    return store.lookup(tf.constant(ids, tf.int64), FEATURE)[0]


# The formula of cc/store/row_initializer.h.


def shift(x, bits):
    return tf.bitwise.right_shift(x, tf.constant(bits, x.dtype))


def mix64(x):
    x = tf.bitwise.bitwise_xor(x, shift(x, 30)) * tf.constant(
        0xBF58476D1CE4E5B9, tf.uint64
    )
    x = tf.bitwise.bitwise_xor(x, shift(x, 27)) * tf.constant(
        0x94D049BB133111EB, tf.uint64
    )
    return tf.bitwise.bitwise_xor(x, shift(x, 31))


def mix32(x):
    x = tf.bitwise.bitwise_xor(x, shift(x, 16)) * tf.constant(0x85EBCA6B, tf.uint32)
    x = tf.bitwise.bitwise_xor(x, shift(x, 13)) * tf.constant(0xC2B2AE35, tf.uint32)
    return tf.bitwise.bitwise_xor(x, shift(x, 16))


@tf.function
def unit_numbers(ids, seed, dim):
    """float64 `(n, dim)` in (0, 1), exact."""
    state = mix64(seed + mix64(tf.bitcast(ids, tf.uint64)))
    # Little-endian: the low half of a word comes first.
    low, high = tf.unstack(tf.bitcast(state, tf.uint32), axis=1)
    columns = tf.cast(tf.range(dim), tf.uint32) * tf.constant(0x9E3779B9, tf.uint32)
    inner = mix32(low[:, None] + columns)
    bits = mix32(tf.bitwise.bitwise_xor(inner, high[:, None]))
    return tf.cast(shift(bits, 9), tf.float64) * 2.0**-23 + 2.0**-24


def stock_starts(law, ids, dim, seed=1):
    u = unit_numbers(tf.constant(ids, tf.int64), tf.constant(seed, tf.uint64), dim)
    if law.kind == "normal":
        u = tf.math.ndtri(u)
    elif law.kind == "truncated_normal":
        below = 0.5 * tf.math.erfc(tf.constant(2.0**0.5, tf.float64))
        u = tf.math.ndtri(below + u * (1.0 - 2.0 * below))
    return law.location + law.scale * u


@pytest.mark.parametrize("seed", [1, 0, 2**63 + 12345, 2**64 - 1])
@pytest.mark.parametrize("law", LAWS)
def test_stock_ops_compute_the_same_rows(make_store, law, seed):
    ids = np.r_[-1000:1000, INT64.min, INT64.max, 2**32, -(2**53)]
    law = LAWS[law]
    actual = starts(make_store, law, ids, dim=19, seed=seed)
    expected = stock_starts(law, ids, dim=19, seed=seed)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("law", LAWS)
def test_the_ends_of_the_unit_interval_are_finite(make_store, law):
    # Column 0 of the first id draws the largest number there is, column 2 of the
    # second the least. With one bit more the largest was rounded up to 1, whose normal
    # quantile is infinite, and the row started with a NaN.
    ids = [1363879, 4070040]
    u = unit_numbers(tf.constant(ids, tf.int64), tf.constant(1, tf.uint64), 3).numpy()
    assert u[0, 0] == 1 - 2.0**-24
    assert u[1, 2] == 2.0**-24
    actual = starts(make_store, LAWS[law], ids, dim=3)
    expected = stock_starts(LAWS[law], ids, dim=3)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "law, mean, stddev, least, most",
    [
        (RowInitializer("uniform", -0.05, 0.1), 0.0, 0.1 / 12**0.5, -0.05, 0.05),
        (RowInitializer("normal", 0.5, 2.0), 0.5, 2.0, -12.0, 13.0),
        # A normal cut at two deviations keeps 0.8796 of one.
        (RowInitializer("truncated_normal", 0.5, 2.0), 0.5, 0.8796 * 2, -3.5, 4.5),
    ],
)
def test_many_rows_follow_the_law(make_store, law, mean, stddev, least, most):
    rows = starts(make_store, law, np.arange(20_000), dim=16).numpy()
    # Four standard errors of 320,000 numbers.
    assert abs(rows.mean() - mean) < 4 * stddev / 320_000**0.5
    assert abs(rows.std() / stddev - 1) < 4 * (2 / 320_000) ** 0.5
    assert least <= rows.min() and rows.max() <= most
    # Neither columns nor neighbouring ids go together.
    correlations = np.corrcoef(rows.T) - np.eye(16)
    assert abs(correlations).max() < 5 / 20_000**0.5
    flat = rows.ravel() - mean
    assert abs(np.mean(flat[16:] * flat[:-16])) < 5 * stddev**2 / 320_000**0.5


def test_constant_rows_are_constant(make_store):
    law = RowInitializer("constant", 0.3, scale=9.0)
    rows = starts(make_store, law, [1, -2, INT64.min], dim=3)
    np.testing.assert_array_equal(rows, np.full((3, 3), np.float32(0.3)))


def test_rows_depend_on_feature_seed_and_id_alone(make_store):
    law, ids = LAWS["normal"], [5, 6, 7]
    rows = starts(make_store, law, ids, dim=4).numpy()
    again = starts(make_store, law, [7, 9, 5], dim=4).numpy()
    np.testing.assert_array_equal(again[[2, 0]], rows[[0, 2]])
    # A wider row begins with the narrower one.
    wider = starts(make_store, law, ids, dim=6).numpy()
    np.testing.assert_array_equal(wider[:, :4], rows)
    assert not np.isin(starts(make_store, law, ids, dim=4, seed=2), rows).any()
    # What number a feature has does not matter, only its seed.
    store = make_store(dim=4, initializer=law, feature_seeds=(9, 8, 1))
    third = store.lookup(tf.constant(ids, tf.int64), tf.constant([2]))[0]
    np.testing.assert_array_equal(third, rows)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ("glorot",),
            "`kind` must be one of 'constant', 'uniform', 'normal', "
            "'truncated_normal'. Received: kind='glorot'.",
        ),
        (
            ("normal", 0.0, -0.1),
            "`scale` must be a finite number, not negative. Received: scale=-0.1.",
        ),
        (
            ("uniform", 0.0, float("nan")),
            "`scale` must be a finite number, not negative. Received: scale=nan.",
        ),
    ],
)
def test_values_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        RowInitializer(*arguments)


def test_a_location_that_is_no_number_is_refused():
    message = "`location` must be a finite number. Received: location=nan."
    with pytest.raises(ValueError, match=re.escape(message)):
        RowInitializer("constant", float("nan"))
