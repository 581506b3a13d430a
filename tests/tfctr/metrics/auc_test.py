"""`auc` against the definition: all pairs, counted."""

from fractions import Fraction

import numpy as np
import pytest

from tfctr.metrics import auc


def pairwise_auc(labels, scores):
    positives = [s for s, label in zip(scores, labels, strict=True) if label]
    negatives = [s for s, label in zip(scores, labels, strict=True) if not label]
    right = sum(
        Fraction(1) if p > n else Fraction(1, 2) if p == n else Fraction(0)
        for p in positives
        for n in negatives
    )
    return float(right / (len(positives) * len(negatives)))


@pytest.mark.parametrize("num_values", [1, 2, 5, 50, 10**9])
@pytest.mark.parametrize("seed", range(5))
def test_auc_counts_pairs_and_halves_ties(num_values, seed):
    rng = np.random.default_rng(seed)
    labels = np.append(rng.integers(0, 2, 60), [0, 1])
    scores = rng.integers(0, num_values, 62)
    assert auc(labels, scores) == pairwise_auc(labels, scores.tolist())


@pytest.mark.parametrize(
    ("labels", "scores", "expected"),
    [
        ([0, 1], [0.1, 0.9], 1.0),
        ([0, 1], [0.9, 0.1], 0.0),
        ([0, 1], [0.5, 0.5], 0.5),
        ([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8], 0.875),
        ([0, 1, 1], [-np.inf, 0.0, np.inf], 1.0),
        ([0, 1], [-0.0, 0.0], 0.5),
    ],
)
def test_auc_of_small_cases(labels, scores, expected):
    assert auc(labels, scores) == expected


def test_auc_takes_booleans_and_float32():
    scores = np.array([0.1, 0.4, 0.35, 0.8], np.float32)
    assert auc(np.array([False, False, True, True]), scores) == 0.75


def test_auc_does_not_change_under_a_monotone_map():
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(0, 2, 1000), rng.normal(size=1000)
    assert auc(labels, logits) == auc(labels, 3 * logits + 1)


def test_auc_is_exact_where_pairs_outnumber_float_precision():
    # One pair out of 10**12 is in the wrong order.
    labels = np.repeat([0, 1], 10**6)
    scores = np.arange(2 * 10**6)
    scores[[10**6 - 1, 10**6]] = scores[[10**6, 10**6 - 1]]
    assert auc(labels, scores) == 1 - 1e-12


@pytest.mark.parametrize(("label", "ones", "zeros"), [(1, 3, 0), (0, 0, 3)])
def test_one_class_is_refused(label, ones, zeros):
    with pytest.raises(ValueError, match=f"{ones} ones and {zeros} zeros. Evaluate"):
        auc([label] * 3, [0.1, 0.2, 0.3])
