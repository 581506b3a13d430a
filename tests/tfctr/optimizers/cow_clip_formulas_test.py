"""CowClip's formulas: worked examples, properties, and the rules in plain NumPy."""

import dataclasses
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from tfctr.optimizers.cow_clip_formulas import ClipRule, clip_rows

WEIGHTS = [[0.03, 0.04], [0.0, 0.0], [3e-6, 4e-6], [0.3, 0.4]]
GRADIENT = [[3.0, 4.0], [3e-4, 4e-4], [0.0, 0.0], [0.003, 0.004]]
COUNTS = [2.0, 3.0, 1.0, 0.0]  # The last id is absent.
PAPER, REFERENCE = ClipRule(), ClipRule(variant="reference_code")


def clipped(gradient, weights, counts, rule):
    found, is_clipped = clip_rows(
        *(tf.constant(x, tf.float32) for x in (gradient, weights, counts)), rule
    )
    return found.numpy(), is_clipped.numpy()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (PAPER, [[0.06, 0.08], [1.8e-5, 2.4e-5], [0, 0], [0, 0]]),
        (ClipRule(0.5), [[0.03, 0.04], [1.8e-5, 2.4e-5], [0, 0], [0, 0]]),
        (
            ClipRule(l2=1e-3),
            [[0.06006, 0.08008], [1.8e-5, 2.4e-5], [6e-9, 8e-9], [0, 0]],
        ),
        (
            REFERENCE,
            [[0.06, 0.08], [2.54558e-5, 3.39411e-5], [0, 0], [0.003, 0.004]],
        ),
        (
            ClipRule(0.5, variant="reference_code"),
            [[0.03, 0.04], [6.36396e-6, 8.48528e-6], [0, 0], [0.003, 0.004]],
        ),
        (
            ClipRule(l2=1e-3, variant="reference_code"),
            [[0.06, 0.08], [2.54558e-5, 3.39411e-5], [6e-9, 8e-9], [0.0036, 0.0048]],
        ),
    ],
)
def test_worked_examples(rule, expected):
    found, is_clipped = clipped(GRADIENT, WEIGHTS, COUNTS, rule)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # In the paper an absent id has no room, should it have a gradient.
    assert is_clipped.tolist() == [True, True, False, rule.variant == "paper"]


def as_released(g, w, count, r, zeta, l2):
    """The rules of the authors' code for one row."""
    g = g + 2 * l2 * w
    norm = np.linalg.norm(g)
    least = r * math.sqrt(len(w)) * zeta
    threshold = r * max(np.linalg.norm(w), least) * max(count, 1)
    return g * threshold / max(norm if norm > 0 else 1.0, threshold)


def as_published(g, w, count, r, zeta, l2):
    norm = np.linalg.norm(g)
    clip = count * max(r * np.linalg.norm(w), zeta)
    g = g * min(1.0, clip / norm) if norm else g
    return g + 2 * l2 * w if count else g


def rows(num_rows=200, dim=5):
    rng = np.random.default_rng(3)
    sizes = 10.0 ** rng.uniform(-7, 1, (2, num_rows, 1))
    gradient, weights = rng.normal(size=(2, num_rows, dim)) * sizes
    gradient[::7] = 0
    weights[::11] = 0
    counts = rng.integers(0, 4, num_rows)
    gradient[counts == 0] = 0
    return gradient.astype("float32"), weights.astype("float32"), counts


@pytest.mark.parametrize("ratio, floor, l2", [(1, 1e-5, 0), (0.3, 1e-2, 0.1)])
@pytest.mark.parametrize(
    "variant, row_by_row",
    [("paper", as_published), ("reference_code", as_released)],
)
def test_each_variant_is_its_rules(variant, row_by_row, ratio, floor, l2):
    gradient, weights, counts = rows()
    found, is_clipped = clipped(
        gradient, weights, counts, ClipRule(ratio, floor, l2, variant)
    )
    expected = [
        row_by_row(g, w, count, ratio, floor, l2)
        for g, w, count in zip(*(x.astype(float) for x in rows()), strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-12)
    assert 20 < is_clipped.sum() < 180


@pytest.mark.parametrize("rule", [PAPER, REFERENCE])
def test_clipped_rows_keep_their_direction_and_clip_to_themselves(rule):
    gradient, weights, counts = rows()
    counts = np.maximum(counts, 1)
    found, is_clipped = clipped(gradient, weights, counts, rule)
    lengths = [np.linalg.norm(x, axis=1) for x in (found, gradient)]
    assert (lengths[0] <= lengths[1] * (1 + 1e-6)).all()
    cosines = (found * gradient).sum(1) / np.maximum(lengths[0] * lengths[1], 1e-30)
    np.testing.assert_allclose(cosines[lengths[0] > 1e-12], 1, rtol=1e-5)
    again, _ = clipped(found, weights, counts, rule)
    np.testing.assert_allclose(again, found, rtol=1e-6)
    # Where both are clipped, twice the samples make twice the room.
    twice, still_clipped = clipped(gradient, weights, 2 * counts, rule)
    both = is_clipped & still_clipped
    assert both.sum() > 20
    np.testing.assert_allclose(twice[both], 2 * found[both], rtol=1e-5)


@pytest.mark.parametrize("variant", ["paper", "reference_code"])
@pytest.mark.parametrize("bounds", [{"ratio": math.inf}, {"floor": math.inf}])
def test_infinite_bounds_clip_nothing(variant, bounds):
    gradient, weights, counts = rows()
    found, is_clipped = clipped(
        gradient, weights, counts, ClipRule(variant=variant, **bounds)
    )
    np.testing.assert_array_equal(found, gradient)
    assert not is_clipped.any()


def test_a_bad_gradient_is_not_hidden():
    gradient = [[math.nan, 1.0], [math.inf, 1.0], [1e-6, 0.0]]
    found, _ = clipped(gradient, np.ones((3, 2)), [1, 1, 1], PAPER)
    assert np.isnan(found[0, 0]) and np.isnan(found[1, 0])
    np.testing.assert_allclose(found[2], gradient[2])


def test_half_precision_is_clipped_in_single():
    weights, gradient = tf.constant([[3e-4, 4e-4]]), tf.constant([[300.0, 400.0]])
    found, _ = clip_rows(
        *(tf.cast(x, tf.float16) for x in (gradient, weights)),
        tf.constant([1.0]),
        PAPER,
    )
    assert found.dtype == tf.float16
    np.testing.assert_allclose(found, [[3e-4, 4e-4]], rtol=2e-3)
    exact, _ = clip_rows(
        *(tf.constant(x, tf.float64) for x in (GRADIENT, WEIGHTS, COUNTS)), PAPER
    )
    assert exact.dtype == tf.float64
    np.testing.assert_allclose(exact[0], [0.06, 0.08], rtol=1e-14)


def test_one_weight_is_clipped_when_asked():
    found, is_clipped = clipped([[5.0]], [[0.25]], [1], ClipRule(l2=0.5))
    assert (found.tolist(), is_clipped.tolist()) == ([[5.25]], [False])
    rule = ClipRule(l2=0.5, clip_linear=True)
    found, is_clipped = clipped([[5.0]], [[0.25]], [1], rule)
    assert (found.tolist(), is_clipped.tolist()) == ([[0.5]], [True])
    found, is_clipped = clipped(
        [[5.0]],
        [[0.25]],
        [1],
        dataclasses.replace(rule, variant="reference_code", clip_linear=False),
    )
    assert (found.tolist(), is_clipped.tolist()) == ([[5.25]], [False])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": -1.0}, "not negative, or infinite. Received: ratio=-1.0."),
        ({"floor": math.nan}, "`floor` must be a number, not negative, or infinite."),
        ({"l2": math.inf}, "`l2` must be a number, not negative. Received: l2=inf."),
        ({"ratio": "1"}, "Received: ratio='1'."),
        (
            {"variant": "code"},
            "must be one of 'paper', 'reference_code'. Received: variant='code'.",
        ),
        (
            {"clip_linear": "no"},
            "`clip_linear` must be True or False. Received: clip_linear='no'.",
        ),
    ],
)
def test_what_a_rule_refuses(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ClipRule(**options)
