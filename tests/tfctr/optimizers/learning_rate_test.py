"""`scale_learning_rate`: each rule, and what it refuses."""

import math
import re

import keras
import pytest

from tfctr.optimizers import learning_rate, scale_learning_rate


@pytest.mark.parametrize(
    "rule, expected", [("none", 0.5), ("sqrt", 0.5 * math.sqrt(8)), ("linear", 4.0)]
)
def test_each_rule(rule, expected):
    assert scale_learning_rate(0.5, rule, factor=8) == pytest.approx(expected)


def test_the_factor_is_the_number_of_ranks(monkeypatch):
    assert scale_learning_rate(0.5, "linear") == 0.5
    monkeypatch.setattr(learning_rate.distributed, "size", lambda: 4)
    assert scale_learning_rate(0.5) == 0.5
    assert scale_learning_rate(0.5, "sqrt") == 1.0
    assert scale_learning_rate(0.5, "linear") == 2.0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0.1, "square"), "'none', 'sqrt', 'linear'. Received: rule='square'."),
        ((0.1, "sqrt", 0), "`factor` must be a positive number. Received: factor=0."),
        ((0.1, "sqrt", math.inf), "Received: factor=inf."),
        (
            (keras.optimizers.schedules.CosineDecay(0.1, 9), "sqrt"),
            "`rate` must be a number. Received: rate=<",
        ),
    ],
)
def test_what_it_refuses(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        scale_learning_rate(*arguments)
