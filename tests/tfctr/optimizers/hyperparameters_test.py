"""Hyperparameters for large batches: each rule, the warm-up, and what is refused."""

import math
import re

import keras
import numpy as np
import pytest

from tfctr.optimizers import Hyperparameters, LinearWarmup, scale_hyperparameters

BASE = Hyperparameters(1024, 1e-4, 8e-4, l2=1e-5)


@pytest.mark.parametrize(
    ("rule", "embedding", "dense", "l2"),
    [
        ("none", 1, 1, 1),
        ("sqrt", 4, 4, 4),
        ("linear", 16, 16, 1),
        ("n2_lambda", 1, 4, 256),
        ("cowclip", 1, 4, 16),
    ],
)
def test_each_rule(rule, embedding, dense, l2):
    found = scale_hyperparameters(rule, 16, BASE)
    assert found.batch_size == 16384
    assert found.embedding_learning_rate == pytest.approx(1e-4 * embedding)
    assert found.dense_learning_rate == pytest.approx(8e-4 * dense)
    assert found.l2 == pytest.approx(1e-5 * l2)


def test_the_largest_batch_of_the_paper():
    found = scale_hyperparameters("cowclip", 128, BASE)
    assert found.batch_size == 131072
    assert found.embedding_learning_rate == 1e-4
    assert found.dense_learning_rate == pytest.approx(9.05097e-3, rel=1e-6)
    assert found.l2 == pytest.approx(1.28e-3)


def test_batches_may_shrink():
    assert scale_hyperparameters("cowclip", 1 / 8, BASE).batch_size == 128


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("square", 2, BASE),
            "'none', 'sqrt', 'linear', 'n2_lambda', 'cowclip'. Received: "
            "rule='square'.",
        ),
        (("sqrt", 0, BASE), "`scale` must be a positive number. Received: scale=0."),
        (("sqrt", "2", BASE), "Received: scale='2'."),
        (("sqrt", 1 / 3, BASE), "which make 341.33"),
    ],
)
def test_what_scaling_refuses(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        scale_hyperparameters(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1), "`batch_size` must be a positive integer. Received: batch_size=0."),
        ((1.0, 1, 1), "Received: batch_size=1.0."),
        ((1, -1, 1), "Received: embedding_learning_rate=-1."),
        ((1, 1, math.inf), "Received: dense_learning_rate=inf."),
        (
            (1, 1, 1, "0"),
            "`l2` must be a finite number, not negative. Received: l2='0'",
        ),
    ],
)
def test_values_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Hyperparameters(*arguments)


def test_the_warm_up_is_a_line_and_then_level():
    schedule = LinearWarmup(0.4, warmup_steps=40)
    found = [float(schedule(step)) for step in (0, 10, 39, 40, 1000)]
    np.testing.assert_allclose(found, [1e-8, 0.1, 0.39, 0.4, 0.4], rtol=1e-6)
    assert float(LinearWarmup(0.4, 0)(0)) == pytest.approx(0.4)


def test_the_warm_up_drives_an_optimizer_and_is_saved_with_it():
    optimizer = keras.optimizers.SGD(LinearWarmup(1.0, warmup_steps=2))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    weight = keras.Variable(0.0)
    for _ in range(4):
        again.apply([np.float32(1.0)], [weight])
    assert float(weight) == pytest.approx(-2.5)  # 0, 0.5, 1 and 1.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 5), "Received: learning_rate=-1.0."),
        (("1", 5), "`learning_rate` must be a finite number, not negative."),
        ((1.0, -1), "Received: warmup_steps=-1."),
        ((1.0, 2.5), "`warmup_steps` must be an integer, not negative."),
    ],
)
def test_what_the_warm_up_refuses(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        LinearWarmup(*arguments)
