"""`SyntheticClickLog`: its distributions, its purity, and what can be learned."""

import numpy as np
import pytest

from tfctr.data import SyntheticClickLog
from tfctr.data.synthetic import bounded_zipf
from tfctr.metrics import auc, log_loss


def ids(log, split):
    inputs, _ = next(iter(log.batches(split, log.num_examples(split))))
    return inputs["ids"].numpy()


def test_log_is_frozen():
    log = SyntheticClickLog(20, fields=2, ids_per_field=100, num_dense=1, seed=3)
    assert ids(log, "test").tolist() == [
        [6872260257018358079, 4926943383024333332],
        [3155028468694259014, 9060346453394324021],
    ]
    assert log.labels("train").nonzero()[0].tolist() == [10, 15, 16]
    np.testing.assert_allclose(
        log.probabilities("test"), [0.01315123, 0.27385329], rtol=1e-6
    )
    inputs, _ = next(iter(log.batches("test", 2)))
    np.testing.assert_allclose(inputs["dense"], [[0.34861326], [0.7518863]], rtol=1e-6)


def test_one_example_in_ten_is_in_the_test_split():
    log = SyntheticClickLog(1009)
    assert (log.num_examples("train"), log.num_examples("test")) == (909, 100)


def test_longer_log_begins_like_a_shorter_one():
    short, long = SyntheticClickLog(10_000), SyntheticClickLog(30_000)
    for split in ("train", "test"):
        size = short.num_examples(split)
        np.testing.assert_array_equal(ids(short, split), ids(long, split)[:size])
        np.testing.assert_array_equal(short.labels(split), long.labels(split)[:size])
        np.testing.assert_array_equal(
            short.probabilities(split), long.probabilities(split)[:size]
        )


def test_seed_changes_everything():
    one, other = SyntheticClickLog(1000, seed=1), SyntheticClickLog(1000, seed=2)
    assert not set(one.vocabulary("ids")) & set(other.vocabulary("ids"))
    assert (one.probabilities("train") != other.probabilities("train")).all()
    assert (one.labels("train") != other.labels("train")).any()


def test_splits_are_different_examples():
    log = SyntheticClickLog(2000, ids_per_field=10**9)
    assert (ids(log, "train")[:200] != ids(log, "test")).any(axis=1).all()


def test_arrays_are_in_the_order_of_the_log():
    log = SyntheticClickLog(20_000)
    labels = np.concatenate([labels for _, labels in log.batches("test", 512)])
    np.testing.assert_array_equal(labels, log.labels("test"))


def test_arrays_cannot_be_changed_by_accident():
    log = SyntheticClickLog(100)
    with pytest.raises(ValueError, match="read-only"):
        log.labels("train")[0] = 1


def test_ids_are_scattered_and_no_two_fields_share_one():
    log = SyntheticClickLog(20_000, fields=3, ids_per_field=100)
    columns = [set(column.tolist()) for column in ids(log, "train").T]
    assert [len(column) for column in columns] == [100, 100, 100]
    assert len(set.union(*columns)) == 300
    every_id = log.vocabulary("ids").astype(float)
    # 300 uniform values leave no eighth of int64 empty.
    counts, _ = np.histogram(every_id, 8, (-(2.0**63), 2.0**63))
    assert counts.min() > 0


def test_frequencies_follow_the_bounded_power_law():
    log = SyntheticClickLog(100_000, fields=1, ids_per_field=1000)
    _, counts = np.unique(ids(log, "train"), return_counts=True)
    edges = np.arange(1, 1002.0) ** -0.05
    expected = (edges[:-1] - edges[1:]) / (edges[0] - edges[-1]) * 90_000
    found = np.sort(counts)[::-1]
    # Six standard deviations of a Poisson count, for ranks that sorting keeps apart.
    assert (np.abs(found - expected)[:10] < 6 * np.sqrt(expected[:10])).all()


@pytest.mark.parametrize("num_ranks", [2, 20_000, 2**40])
def test_ranks_stay_in_their_range(num_ranks):
    chance = np.array([0.0, 0.5, 1 - 2.0**-53])
    ranks = bounded_zipf(chance, num_ranks)
    assert ranks[0] == 0 and (np.diff(ranks) >= 0).all()
    assert num_ranks - 2 - num_ranks // 10**9 <= ranks[2] <= num_ranks - 1


def test_ranks_invert_the_distribution_function():
    # The chance at which each rank begins.
    edges = (1 - np.arange(1, 101) ** -0.05) / (1 - 101**-0.05)
    ranks = np.arange(100)
    np.testing.assert_array_equal(bounded_zipf(edges + 1e-12, 100), ranks)
    np.testing.assert_array_equal(bounded_zipf(edges[1:] - 1e-12, 100), ranks[:-1])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_teacher_is_neither_trivial_nor_hopeless(seed):
    log = SyntheticClickLog(200_000, seed=seed)
    labels, probabilities = log.labels("test"), log.probabilities("test")
    assert 0.80 < auc(labels, probabilities) < 0.90
    assert 0.22 < labels.mean() < 0.28


def test_labels_follow_the_probabilities():
    log = SyntheticClickLog(200_000)
    labels, probabilities = log.labels("train"), log.probabilities("train")
    tenth = np.clip(probabilities * 10, 0, 9).astype(int)
    size = np.bincount(tenth)
    clicks, expected = np.bincount(tenth, labels), np.bincount(tenth, probabilities)
    spread = np.sqrt(np.bincount(tenth, probabilities * (1 - probabilities)))
    assert size.min() > 100
    assert (np.abs(clicks - expected) < 6 * spread).all()


def test_nothing_scores_better_than_the_teacher():
    log = SyntheticClickLog(100_000)
    labels, probabilities = log.labels("test"), log.probabilities("test")
    noise = np.random.default_rng(0).normal(size=labels.size)
    blurred = 1 / (1 + np.exp(-np.log(probabilities / (1 - probabilities)) - noise))
    assert auc(labels, blurred) < auc(labels, probabilities)
    assert log_loss(labels, blurred) > log_loss(labels, probabilities)


def test_ids_alone_tell_much_and_not_all():
    log = SyntheticClickLog(200_000, fields=4, ids_per_field=500)
    vocabulary = log.vocabulary("ids")
    train, test = (np.searchsorted(vocabulary, ids(log, s)) for s in ("train", "test"))
    labels = log.labels("train")
    # Naive Bayes: the smoothed log-odds of every id, summed over an example's ids.
    seen = np.bincount(train.ravel(), minlength=len(vocabulary))
    clicks = np.bincount(train.ravel(), labels.repeat(4), minlength=len(vocabulary))
    log_odds = np.log((clicks + 1) / (seen - clicks + 3))
    reached = auc(log.labels("test"), log_odds[test].sum(axis=1))
    best = auc(log.labels("test"), log.probabilities("test"))
    assert 0.65 < reached < best - 0.02


def test_a_single_field_keeps_its_column():
    log = SyntheticClickLog(100, fields=1)
    assert log.features[0].shape == (1,)
    assert ids(log, "train").shape == (90, 1)


def test_dense_feature_is_offered_only_if_there_is_one():
    assert [f.name for f in SyntheticClickLog(100).features] == ["ids"]
    log = SyntheticClickLog(10_000, num_dense=2)
    assert [f.name for f in log.features] == ["ids", "dense"]
    dense = next(iter(log.batches("train", 9000)))[0]["dense"].numpy()
    assert 0 <= dense.min() < 0.01 and 0.99 < dense.max() <= 1
    assert abs(np.corrcoef(dense.T)[0, 1]) < 6 / np.sqrt(9000)


def test_dense_feature_has_no_vocabulary():
    with pytest.raises(ValueError, match="Received: feature_name='dense', a dense"):
        SyntheticClickLog(100, num_dense=1).vocabulary("dense")


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("num_examples", 9, "10 or more"),
        ("num_examples", 1e6, "10 or more"),
        ("fields", 0, "1 or more"),
        ("ids_per_field", 1, "from 2 to 1099511627776"),
        ("ids_per_field", 2**40 + 1, "from 2 to 1099511627776"),
        ("dim", 0, "1 or more"),
        ("num_dense", -1, "0 or more"),
        ("seed", -1, "from 0 to 9223372036854775807"),
    ],
)
def test_arguments_out_of_range_are_refused(name, value, limits):
    with pytest.raises(
        ValueError,
        match=f"`{name}` must be an integer, {limits}. Received: {name}={value!r}. Set",
    ):
        SyntheticClickLog(**{name: value})
