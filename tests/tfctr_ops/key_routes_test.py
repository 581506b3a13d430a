"""Keys to their owners and back, through TensorFlow; the rest is key_routes_test.cc."""

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import read_key_messages, route_keys

INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("num_owners", [1, 2, 5])
def test_each_distinct_key_arrives_once_where_its_place_says(num_owners):
    rng = np.random.default_rng(0)
    ids = rng.choice([INT64.min, -1, 0, 1, 7, INT64.max], 600)
    features = np.array([0, -1, 2], np.int32)
    routes = route_keys(tf.constant(ids), tf.constant(features), 3, num_owners)
    keys = read_key_messages(routes.messages, routes.sizes, 3)
    arrived = list(zip(keys.features.numpy(), keys.ids.numpy(), strict=True))
    of_each = np.tile(features, 200)
    wanted = {
        (feature, id_)
        for feature, id_ in zip(of_each, ids, strict=True)
        if feature >= 0
    }
    assert len(arrived) == len(set(arrived)) == int(tf.reduce_sum(keys.num_keys))
    assert set(arrived) == wanted
    for place, feature, id_ in zip(routes.places.numpy(), of_each, ids, strict=True):
        assert place == -1 if feature < 0 else arrived[place] == (feature, id_)


def test_counts_of_equal_keys_are_added_and_travel_along():
    ids = tf.constant([7, 5, 7, 9, 9], tf.int64)
    counts = tf.constant([1, 2, 3, 0, 5])
    routes = route_keys(ids, tf.constant([0]), 1, 2, counts, sends_counts=True)
    keys = read_key_messages(routes.messages, routes.sizes, 1, has_counts=True)
    found = dict(zip(keys.ids.numpy(), keys.counts.numpy(), strict=True))
    assert found == {7: 4, 5: 2, 9: 5}
    assert routes.num_keys.numpy().tolist() == keys.num_keys.numpy().tolist()


@pytest.mark.parametrize(
    "counts, message",
    [
        ([1], "one count for each of the 2 ids, or none. Received: counts.shape=.1."),
        ([[1, 1]], "or none. Received: counts.shape=.1,2."),
        ([3, -1], "`counts` must not be negative. Received: a count of -1"),
    ],
)
def test_counts_that_are_none_are_refused(counts, message):
    ids, feature = tf.constant([1, 2], tf.int64), tf.constant([0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        route_keys(ids, feature, 1, 1, tf.constant(counts))


def test_owners_share_many_keys_about_equally():
    routes = route_keys(tf.range(30_000, dtype=tf.int64), tf.constant([0]), 1, 3)
    assert routes.sizes.numpy().sum() == 30_003
    np.testing.assert_allclose(routes.sizes, 10_000, atol=300)


def test_static_shapes_are_known():
    @tf.function(
        input_signature=[tf.TensorSpec([6], tf.int64), tf.TensorSpec([2], tf.int32)]
    )
    def run(ids, features):
        routes = route_keys(ids, features, 4, 3)
        assert routes.sizes.shape == [3] and routes.places.shape == [6]
        keys = read_key_messages(routes.messages, routes.sizes, 4)
        assert keys.ids.shape.rank == 1 and keys.num_keys.shape == [3]
        return keys.ids

    assert run(tf.range(6, dtype=tf.int64), tf.constant([0, 3])).shape == [6]


@pytest.mark.parametrize(
    "ids, features, message",
    [
        ([1], [3], "`features` must lie in .0, 3., or be -1"),
        ([1, 2, 3], [0, 1], "multiple of the number of features. Received: 3 ids, 2"),
        ([[1]], [0], "`ids` and `features` must have rank 1"),
    ],
)
def test_keys_that_are_none_are_refused(ids, features, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        route_keys(tf.constant(ids, tf.int64), tf.constant(features), 3, 2)


@pytest.mark.parametrize(
    "messages, sizes, message",
    [
        ([5, 7], [2], "2 numbers from sender 0 that do not count so"),
        ([0, 1, 7], [1], "`sizes` must be those of all messages: 3 in all"),
        ([[1]], [1], "`messages` and `sizes` must have rank 1"),
    ],
)
def test_messages_that_are_none_are_refused(messages, sizes, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        read_key_messages(tf.constant(messages, tf.int64), tf.constant(sizes), 1)
