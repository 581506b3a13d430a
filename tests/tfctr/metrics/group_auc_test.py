"""`group_auc` against `auc`, group by group."""

import numpy as np
import pytest

from tfctr.metrics import GroupAUC, auc, group_auc


def examples(seed, num_values, num_groups=7, n=300):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, num_groups, n) * 10**12 - 5
    return rng.integers(0, 2, n), rng.integers(0, num_values, n), groups


def by_group(labels, scores, groups):
    """The mean of the groups' own AUCs, with their sizes."""
    areas, sizes = [], []
    for group in set(groups.tolist()):
        own = groups == group
        if 0 < labels[own].sum() < own.sum():
            areas.append(auc(labels[own], scores[own]))
            sizes.append(own.sum())
    return np.average(areas, weights=sizes)


@pytest.mark.parametrize("num_values", [1, 3, 10**6])
@pytest.mark.parametrize("num_groups", [1, 7, 200])
def test_it_is_the_mean_of_the_groups(num_values, num_groups):
    columns = examples(num_groups, num_values, num_groups)
    assert group_auc(*columns) == pytest.approx(by_group(*columns), abs=1e-12)


def test_parts_of_several_ranks_are_one():
    columns = examples(1, 5)
    ranks = [GroupAUC(), GroupAUC()]
    for start in range(0, 300, 50):
        part = [column[start : start + 50] for column in columns]
        ranks[start // 50 % 2].update(*part)
    ranks[0].merge(ranks[1])
    assert ranks[0].result() == pytest.approx(group_auc(*columns), abs=1e-12)


def test_a_buffer_may_be_filled_anew():
    metric = GroupAUC()
    labels, scores, groups = np.array([1, 0]), np.array([0.9, 0.1]), np.array([7, 7])
    metric.update(labels, scores, groups)
    labels[:], scores[:], groups[:] = [0, 1], [0.5, 0.7], [8, 9]
    assert metric.result() == 1.0


def test_groups_may_be_strings():
    assert group_auc([1, 0, 0, 1], [2, 1, 2, 1], ["a", "a", "bb", "bb"]) == 0.5


def test_groups_with_one_kind_of_labels_do_not_count():
    assert group_auc([1, 0, 1, 1], [2, 1, 2, 1], [1, 1, 2, 2]) == 1.0


def test_no_group_with_both_is_refused():
    with pytest.raises(ValueError, match="Received: 2 groups, none"):
        group_auc([1, 0], [0.5, 0.5], [1, 2])
    with pytest.raises(ValueError, match="Received: 0 groups"):
        GroupAUC().result()


def test_a_group_is_named_for_each_example():
    with pytest.raises(ValueError, match=r"Received: groups.shape=\(1,\), labels"):
        group_auc([1, 0], [0.5, 0.5], [1])


@pytest.mark.parametrize(
    ("groups", "received"),
    [
        ([None, 1], "<class 'NoneType'> and integers"),
        ([1.0, 2.0], "float64"),
        (np.array([1, "1"], object), "integers and strings"),
    ],
)
def test_groups_are_named_by_integers_or_strings(groups, received):
    message = f"must be integers, or strings, all of them. Received: {received}."
    with pytest.raises(ValueError, match=message):
        group_auc([1, 0], [0.9, 0.1], groups)


def test_parts_name_their_groups_alike():
    metric, other = GroupAUC(), GroupAUC()
    metric.update([1, 0], [0.9, 0.1], np.array([2**63, 2**63 + 1], np.uint64))
    other.update([1, 0], [0.9, 0.1], [1, 2])
    message = "must be unsigned integers in all parts.*Received: integers."
    with pytest.raises(ValueError, match=message):
        metric.merge(other)
    assert group_auc([1, 0], [2, 1], np.array(["a", "a"], object)) == 1.0
