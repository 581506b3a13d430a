"""Distinct keys, and the ways between their rows and the batch, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import distinct_keys, gather_weights, sum_gradients

INT64 = np.iinfo(np.int64)


def lock_of(word):
    """The low 16 bits of MurmurHash3's finalizer, in Python's integers."""
    k = word % 2**64
    k = (k ^ k >> 33) * 0xFF51AFD7ED558CCD % 2**64
    k = (k ^ k >> 33) * 0xC4CEB9FE1A85EC53 % 2**64
    return (k ^ k >> 33) % 2**16


def test_each_distinct_key_stands_where_its_places_say():
    rng = np.random.default_rng(0)
    ids = rng.choice([INT64.min, -1, 0, 1, 7, INT64.max], 600)
    features = np.array([0, -1, 2], np.int32)
    keys = distinct_keys(tf.constant(ids), tf.constant(features), 3)
    found = list(zip(keys.features.numpy(), keys.ids.numpy(), strict=True))
    batch = list(zip(np.tile(features, 200), ids, strict=True))
    assert len(set(found)) == len(found)
    assert set(found) == {(feature, id_) for feature, id_ in batch if feature >= 0}
    for place, key in zip(keys.places.numpy(), batch, strict=True):
        assert place == -1 if key[0] < 0 else found[place] == key
    assert keys.counts.shape == [0]


def test_words_are_ids_xor_a_pattern_of_the_feature():
    ids = tf.constant([INT64.min, -1, 0, 12345], tf.int64)
    keys = distinct_keys(ids, tf.constant([0, 1]), 2)
    for id_, feature, word in zip(*(c.numpy().tolist() for c in keys[:3]), strict=True):
        pattern = (feature + 1) * 0x9E3779B97F4A7C15 % 2**64
        assert word % 2**64 == id_ % 2**64 ^ pattern


def test_the_order_is_that_of_the_locks_in_groups_of_eight():
    ids = tf.range(5000, dtype=tf.int64)
    keys = distinct_keys(ids, tf.constant([0]), 1)
    groups = [lock_of(word) // 8 for word in keys.words.numpy().tolist()]
    assert groups == sorted(groups)
    again = distinct_keys(tf.reverse(ids, [0]), tf.constant([0]), 1)
    assert sorted(again.ids.numpy()) == list(range(5000))


def test_counts_of_equal_keys_are_added():
    ids = tf.constant([7, 5, 7, 9, 9], tf.int64)
    for counts, wanted in (
        (tf.constant([1, 2, 3, 0, 5]), {7: 4, 5: 2, 9: 5}),
        (None, {7: 2, 5: 1, 9: 2}),
    ):
        keys = distinct_keys(ids, tf.constant([0]), 1, counts, has_counts=True)
        found = dict(zip(keys.ids.numpy(), keys.counts.numpy(), strict=True))
        assert found == wanted


def test_nothing_has_no_keys():
    keys = distinct_keys(tf.constant([], tf.int64), tf.constant([], tf.int32), 3)
    assert [column.shape for column in keys] == [[0]] * 5


@pytest.mark.parametrize(
    "ids, features, message",
    [
        ([1, 2, 3], [0, 1], "multiple of the number of features. Received: 3 ids"),
        ([1, 2], [0, 2], "feature"),
    ],
)
def test_keys_that_are_none_are_refused(ids, features, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        distinct_keys(tf.constant(ids, tf.int64), tf.constant(features), 2)


# Above 2048 places there are several tasks.
@pytest.mark.parametrize("n", [0, 5, 9000])
@pytest.mark.parametrize("dim", [1, 16, 21])
def test_weights_go_where_rows_occur_and_gradients_come_back(n, dim):
    rng = np.random.default_rng(n + dim)
    rows = rng.normal(size=(70, dim + 3)).astype(np.float32)
    places = rng.integers(-1, 70, n, dtype=np.int32)
    wanted = np.concatenate([rows, np.zeros((1, dim + 3))])[places, :dim]
    weights = gather_weights(tf.constant(rows), tf.constant(places), dim)
    np.testing.assert_array_equal(weights, wanted)
    gradients = rng.normal(size=(n, dim)).astype(np.float32)
    sums = np.zeros((71, dim), np.float32)
    for place, gradient in zip(places, gradients, strict=True):
        sums[place] += gradient  # The last is of none.
    ours = sum_gradients(tf.constant(gradients), tf.constant(places), 70)
    np.testing.assert_array_equal(ours, sums[:70])


def test_places_of_no_row_are_refused():
    rows = tf.zeros([3, 2])
    for place in (3, -2):
        message = f"Received: {place}, of 3 rows"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            gather_weights(rows, tf.constant([place]), 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least 4 columns"):
        gather_weights(rows, tf.constant([0]), 4)


def test_gradients_need_one_place_each():
    with pytest.raises(tf.errors.InvalidArgumentError, match="one row for each"):
        sum_gradients(tf.zeros([3, 2]), tf.constant([0, 1]), 2)


def test_a_negative_number_of_rows_is_refused():
    message = "`num_rows` must not be negative.*num_rows=-3"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        sum_gradients(tf.zeros([1, 2]), tf.constant([0]), -3)


def test_shapes_are_known_while_tracing():
    shapes = []

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([4], tf.int32),
            tf.TensorSpec([None, 3]),
        ]
    )
    def trace(ids, places, gradients):
        keys = distinct_keys(ids, tf.constant([0]), 1, has_counts=True)
        sums = sum_gradients(gradients, places, 7)
        weights = gather_weights(gradients, places, 2)
        shapes.extend(x.shape.as_list() for x in (*keys, sums, weights))

    trace.get_concrete_function()
    assert shapes == [[None]] * 5 + [[7, 3], [4, 2]]
