"""`log_loss` against its formula, one example at a time."""

import math

import keras
import numpy as np
import pytest

from tfctr.metrics import log_loss


def test_log_loss_is_the_mean_negative_log_likelihood():
    rng = np.random.default_rng(0)
    labels, probabilities = rng.integers(0, 2, 100), rng.random(100)
    expected = -sum(
        math.log(p if label else 1 - p)
        for label, p in zip(labels, probabilities, strict=True)
    )
    np.testing.assert_allclose(log_loss(labels, probabilities), expected / 100, 1e-13)


def test_log_loss_equals_keras_up_to_float32():
    rng = np.random.default_rng(1)
    labels, probabilities = rng.integers(0, 2, 1000), rng.random(1000)
    expected = keras.losses.binary_crossentropy(
        labels.astype(np.float32), probabilities.astype(np.float32)
    )
    np.testing.assert_allclose(log_loss(labels, probabilities), expected, rtol=1e-5)


@pytest.mark.parametrize("label", [0, 1])
def test_saturated_probability_is_clipped(label):
    wrong = np.array([1 - label], np.float32)
    np.testing.assert_allclose(log_loss([label], wrong), -math.log(1e-7), rtol=1e-9)
    np.testing.assert_allclose(
        log_loss([label], wrong, epsilon=1e-3), -math.log(1e-3), rtol=1e-12
    )


def test_one_class_has_a_log_loss():
    assert log_loss([1, 1], [0.5, 0.5]) == math.log(2)


@pytest.mark.parametrize("value", [-0.5, 1.5, float("inf")])
def test_logits_are_refused(value):
    with pytest.raises(
        ValueError,
        match=rf"Received: probabilities\[1\]={value}. Pass logits through a sigmoid",
    ):
        log_loss([0, 1], [0.5, value])
