"""What `KStepAdam` refuses, and what it says then."""

import re

import keras
import pytest
import tensorflow as tf

from tfctr.optimizers import KStepAdam


def variable_of(start, dtype="float64"):
    return keras.Variable(start, dtype=dtype, name="x")


REFUSED = {
    "k": ({"k": 0}, "`k` must be a positive integer. Received: k=0."),
    "k of a float": ({"k": 2.0}, "Received: k=2.0."),
    "merge": (
        {"merge": "all"},
        "`merge` must be one of 'frozen_denominator', 'parameters', "
        "'parameters_and_moments'. Received: merge='all'.",
    ),
    "warm-up": (
        {"warmup_merges": -1},
        "`warmup_merges` must be an integer, not negative. Received: warmup_merges=-1.",
    ),
    "beta_1": (
        {"beta_1": 1.0},
        "`beta_1` must be at least 0 and below 1. Received: beta_1=1.0.",
    ),
    "beta_2": ({"beta_2": -0.5}, "Received: beta_2=-0.5."),
    "epsilon": ({"epsilon": 0.0}, "`epsilon` must be above 0. Received: epsilon=0.0."),
    "bias_correction": (
        {"merge": "parameters", "bias_correction": True},
        "`bias_correction` is for merge='frozen_denominator' alone. Received: "
        "bias_correction=True and merge='parameters', which is Adam with its bias "
        "corrected. Leave it out.",
    ),
    "amsgrad": (
        {"merge": "parameters_and_moments", "amsgrad": False},
        "Received: amsgrad=False and",
    ),
    "weight_decay": (
        {"weight_decay": 0.1},
        "KStepAdam does not do what `weight_decay` asks for. Received: "
        "weight_decay=0.1. Leave it out.",
    ),
    "use_ema": ({"use_ema": True}, "Received: use_ema=True. Leave it out."),
    "loss_scale_factor": ({"loss_scale_factor": 8.0}, "loss_scale_factor=8.0."),
    "accumulation": (
        {"gradient_accumulation_steps": 4},
        "Received: gradient_accumulation_steps=4. Leave it out.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_be_are_refused(case):
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        KStepAdam(1e-3, **{"k": 4, **options})


def test_strategies_are_refused():
    message = (
        "KStepAdam merges ranks of `horovodrun`, not the replicas of a strategy. "
        "Received: OneDeviceStrategy. Make it outside of `strategy.scope()`."
    )
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        with pytest.raises(ValueError, match=re.escape(message)):
            KStepAdam(k=4)


def test_coarse_variables_are_refused():
    message = (
        "KStepAdam trains float32 and float64 variables; its moments need them. "
        "Received: 'x' of bfloat16. Use the policy 'mixed_bfloat16', whose variables "
        "are float32."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        KStepAdam(k=4).build([variable_of(1.0, "bfloat16")])


@pytest.mark.parametrize(
    ("gradients", "variables", "message"),
    [
        (
            [1.0],
            None,
            "KStepAdam must know its variables to apply gradients. Received: gradients "
            "only, before `build`. Say apply(gradients, variables).",
        ),
        (
            [1.0, 1.0],
            [0],
            "KStepAdam needs a gradient, or None, for each variable. Received: 2 "
            "gradients for 1 variables.",
        ),
        (
            [None, None],
            [0, 1],
            "KStepAdam needs a gradient for one variable at least. Received: None for "
            "['x', 'x']. Does the loss depend on them?",
        ),
    ],
)
def test_gradients_that_do_not_fit_are_refused(gradients, variables, message):
    known = [variable_of(1.0), variable_of(2.0)]
    with pytest.raises(ValueError, match=re.escape(message)):
        KStepAdam(k=4).apply(gradients, variables and [known[i] for i in variables])


def test_variables_of_another_model_are_refused():
    optimizer = KStepAdam(k=4)
    optimizer.build([variable_of(1.0)])
    message = (
        "KStepAdam must be applied to the variables it was built with. Received: 'x', "
        "which is none of them. Make an optimizer for it."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.apply([tf.constant(1.0)], [variable_of(1.0)])
