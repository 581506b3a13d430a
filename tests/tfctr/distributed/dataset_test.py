"""Slices of batches, and batches of each rank's examples: whose, and how weighed."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr import distributed
from tfctr.distributed.dataset import _shard, _shard_examples

RANKS = 3


def shards(dataset, ranks=2, training=True):
    return [list(_shard(dataset, rank, ranks, training)) for rank in range(ranks)]


def parts(dataset, batch_size, counts, training=True):
    """What each rank makes of its part of the examples of `dataset`."""
    found, start = [], 0
    for rank, count in enumerate(counts):
        own = dataset.skip(start).take(count)
        found.append(_shard_examples(own, batch_size, rank, counts, training))
        start += count
    return found


def labelled(count):
    return tf.data.Dataset.from_tensor_slices((np.arange(count), np.arange(count) % 2))


def as_lists(batches):
    return [keras.tree.map_structure(lambda x: x.numpy().tolist(), b) for b in batches]


# Slices of global batches.


def test_each_rank_has_its_slice_of_each_batch():
    dataset = labelled(8).batch(4, drop_remainder=True)
    first, second = shards(dataset)
    assert as_lists(first) == [([0, 1], [0, 1]), ([4, 5], [0, 1])]
    assert as_lists(second) == [([2, 3], [0, 1]), ([6, 7], [0, 1])]
    sharded = _shard(dataset, 0, 2, True)
    # No weights, and shapes still known.
    assert keras.tree.map_structure(lambda s: s.shape, sharded.element_spec) == (2, 2)
    assert len(sharded) == 2


def test_unequal_slices_are_weighed():
    first, second, third = shards(labelled(9).batch(5), ranks=3)
    assert as_lists(first) == [
        ([0], [0], pytest.approx([3 / 5])),
        ([5], [1], pytest.approx([3 / 4])),
    ]
    assert as_lists(second) == [
        ([1, 2], [1, 0], pytest.approx([6 / 5] * 2)),
        ([6], [0], pytest.approx([3 / 4])),
    ]
    assert as_lists(third) == [
        ([3, 4], [1, 0], pytest.approx([6 / 5] * 2)),
        ([7, 8], [1, 0], pytest.approx([6 / 4] * 2)),
    ]


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("ranks", range(1, 6))
def test_the_mean_of_the_means_is_that_of_the_batch(size, ranks):
    losses = np.random.default_rng(size).normal(size=20).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((losses, losses)).batch(size)
    of_ranks = shards(dataset, ranks)
    for step, (batch, _) in enumerate(dataset):
        means = []
        for of_rank in of_ranks:
            own, _, weights = (*of_rank[step], np.ones(1))[:3]
            means.append(np.mean(np.array(own) * weights))
        assert np.mean(means) == pytest.approx(np.mean(batch), rel=1e-5, abs=1e-6)


def test_an_empty_slice_is_some_example_with_weight_0():
    first, second = shards(labelled(5).batch(4))
    assert as_lists(first)[1] == ([4], [0], [0.0])
    assert as_lists(second)[1] == ([4], [0], [2.0])


def test_for_evaluation_every_example_weighs_as_it_does():
    first, second = shards(labelled(4).batch(3), training=False)
    assert as_lists(first) == [([0], [0], [1.0]), ([3], [1], [0.0])]
    assert as_lists(second) == [([1, 2], [1, 0], [1.0, 1.0]), ([3], [1], [1.0])]


def test_weights_of_ones_own_are_multiplied():
    y = {"a": np.zeros(3), "b": np.zeros(3)}
    weights = {"a": np.array([1, 2, 3]), "b": np.array([[4.0], [5.0], [6.0]])}
    dataset = tf.data.Dataset.from_tensor_slices((np.arange(3), y, weights)).batch(3)
    (one,), (two,) = shards(dataset)
    np.testing.assert_allclose(one[2]["a"], [2 / 3])
    np.testing.assert_allclose(one[2]["b"], [[8 / 3]])
    np.testing.assert_allclose(two[2]["a"], [8 / 3, 12 / 3])
    np.testing.assert_allclose(two[2]["b"], [[20 / 3], [24 / 3]])


def test_ragged_sparse_and_nested_inputs_are_cut():
    ragged = tf.ragged.constant([[1], [], [2, 3], [4], [5]])
    sparse = tf.sparse.from_dense([[0, 1], [0, 0], [2, 0], [0, 3], [4, 5]])
    x = {"ragged": ragged, "more": (sparse, tf.constant(list("abcde")))}
    dataset = tf.data.Dataset.from_tensor_slices((x, np.arange(5.0))).batch(3)
    sharded = _shard(dataset, 1, 2, True)
    assert sharded.element_spec[0]["more"][0].shape.as_list() == [None, 2]
    full, last = sharded
    assert full[0]["ragged"].to_list() == [[], [2, 3]]
    assert tf.sparse.to_dense(full[0]["more"][0]).numpy().tolist() == [[0, 0], [2, 0]]
    assert full[0]["more"][1].numpy().tolist() == [b"b", b"c"]
    assert last[0]["ragged"].to_list() == [[5]]
    assert tf.sparse.to_dense(last[0]["more"][0]).numpy().tolist() == [[4, 5]]
    assert full[2].numpy().tolist() == pytest.approx([4 / 3] * 2)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: {"x": x}])
def test_inputs_without_labels_keep_their_form(form):
    _, second = shards(tf.data.Dataset.range(5).batch(3).map(form))
    assert as_lists(second) == [form([1, 2]), form([4])]


def test_what_is_not_batched_is_refused():
    message = "whose first axis is the batch. Received: TensorSpec(shape=(), "
    with pytest.raises(ValueError, match=re.escape(message)):
        _shard(labelled(3), 0, 2, True)


def test_alone_a_rank_has_everything():
    dataset = labelled(3).batch(2)
    assert distributed.shard(dataset) is dataset
    batches = distributed.shard_examples(labelled(3), 2)
    assert as_lists(batches) == [([0, 1], [0, 1]), ([2], [0])]


# Examples of each rank.


def test_all_ranks_make_as_many_steps():
    of_ranks = parts(labelled(8), 4, [5, 3])
    assert [len(of_rank) for of_rank in of_ranks] == [3, 3]
    first, second = map(as_lists, of_ranks)
    assert first == [
        ([0, 1], [0, 1], [1.0, 1.0]),
        ([2, 3], [0, 1], pytest.approx([4 / 3] * 2)),
        ([4], [0], [2.0]),
    ]
    assert second == [
        ([5, 6], [1, 0], [1.0, 1.0]),
        ([7], [1], pytest.approx([2 / 3])),
        ([5], [1], [0.0]),
    ]


def test_equal_parts_need_no_weights():
    first, second = parts(labelled(6), 4, [3, 3])
    assert as_lists(first) == [([0, 1], [0, 1]), ([2], [0])]
    assert as_lists(second) == [([3, 4], [1, 0]), ([5], [1])]


def test_for_evaluation_only_what_is_there_again_weighs_nothing():
    first, second = parts(labelled(4), 2, [3, 1], training=False)
    assert [weights for _, _, weights in as_lists(first)] == [[1.0]] * 3
    assert [weights for _, _, weights in as_lists(second)] == [[1.0], [0.0], [0.0]]


def test_a_rank_without_examples_goes_on_with_zeros():
    x = {
        "dense": tf.ones((2, 3)),
        "ragged": tf.ragged.constant([[[1], [2, 3]], [[4]]]),
        "sparse": tf.sparse.from_dense(np.eye(2)),
        "text": tf.constant(["a", "b"]),
    }
    dataset = tf.data.Dataset.from_tensor_slices((x, [1, 1]))
    first, second = parts(dataset, 2, [2, 0])
    assert len(second) == 2
    for own, (zeros, label, weight) in zip(first, second, strict=True):
        np.testing.assert_array_equal(zeros["dense"], np.zeros((1, 3)))
        assert zeros["ragged"].to_list() == [[]]
        np.testing.assert_array_equal(tf.sparse.to_dense(zeros["sparse"]), [[0, 0]])
        assert zeros["text"].numpy().tolist() == [b""]
        assert (label.numpy().tolist(), weight.numpy().tolist()) == ([0], [0.0])
        assert own[2].numpy().tolist() == [2.0]
    # One specification for all steps, whatever came before.
    assert zeros["ragged"].shape.rank == 3


def test_data_sets_that_do_not_know_their_size_are_counted():
    batches = parts(labelled(4).filter(lambda x, y: x >= 0), 4, [3, 1])
    assert [int(batch.cardinality()) for batch in batches] == [2, 2]


@pytest.mark.parametrize(
    "counts, shown", [([0, 0], "[0, 0]"), ([2, -1], "[2, 'infinitely many']")]
)
def test_data_sets_without_an_end_or_an_example_are_refused(counts, shown):
    message = f"an example on some rank. Received: {shown} examples on the ranks."
    with pytest.raises(ValueError, match=re.escape(message)):
        _shard_examples(labelled(2), 2, 0, counts, True)


def test_the_batch_size_must_be_shared_out():
    message = "multiple of the number of ranks. Received: batch_size=0, 1 ranks."
    with pytest.raises(ValueError, match=re.escape(message)):
        distributed.shard_examples(labelled(2), 0)


# In a job.

X = np.random.default_rng(1).normal(size=(20, 3)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")
COUNTS = [9, 0, 3]


def fitted(batches, epochs, optimizer):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mean_squared_error")
    model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
    return [weight.tolist() for weight in model.get_weights()]


def scenarios():
    optimizer = distributed.DistributedOptimizer
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(9)
    rank = distributed.rank()
    stops = np.cumsum(COUNTS)
    own = slice(stops[rank] - COUNTS[rank], stops[rank])
    files = tf.data.Dataset.from_tensor_slices((X[own], Y[own]))
    files = files.filter(lambda *_: True)
    found = {
        "shard": fitted(distributed.shard(batches), 3, optimizer("adam")),
        "shard_examples": fitted(
            distributed.shard_examples(files, 6), 3, optimizer("adam")
        ),
    }
    try:
        distributed.shard_examples(files, 7)
    except ValueError as error:
        found["message"] = str(error)
    return found


@pytest.fixture(scope="module")
def found(run_ranks):
    return run_ranks(RANKS, __file__, "scenarios")


@pytest.mark.multiprocess
def test_slices_of_batches_train_as_the_batches(found):
    # 20 examples: batches of 9, 9 and 2, the last one for two of three ranks.
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(9)
    expected = fitted(batches, 3, "adam")
    for of_rank in found:
        for weight, own in zip(of_rank["shard"], expected, strict=True):
            np.testing.assert_allclose(weight, own, rtol=1e-5, atol=1e-6)


@pytest.mark.multiprocess
def test_examples_of_ranks_train_as_their_batches(found):
    rows = [[0, 1, 9, 10], [2, 3, 11], [4, 5], [6, 7], [8]]

    def batches():
        for of_step in rows:
            yield X[of_step], Y[of_step]

    spec = tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(rows)))
    expected = fitted(dataset, 3, "adam")
    for of_rank in found:
        for weight, own in zip(of_rank["shard_examples"], expected, strict=True):
            np.testing.assert_allclose(weight, own, rtol=1e-5, atol=1e-6)
        assert "Received: batch_size=7, 3 ranks." in of_rank["message"]
