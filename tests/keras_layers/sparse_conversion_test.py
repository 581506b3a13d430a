"""What Keras optimizers and initializers become, and which are refused."""

import random
import re

import keras
import pytest

from keras_layers.sparse_conversion import to_row_initializer, to_sparse_optimizer
from tfctr_ops import RowInitializer, SparseOptimizer

OPTIMIZERS = {
    "sgd": (
        lambda: keras.optimizers.SGD(0.5, weight_decay=0.01),
        SparseOptimizer("sgd", learning_rate=0.5, weight_decay=0.01),
    ),
    "adagrad": (
        lambda: keras.optimizers.Adagrad(
            0.5, initial_accumulator_value=0.25, epsilon=1e-3
        ),
        SparseOptimizer(
            "adagrad",
            learning_rate=0.5,
            initial_accumulator_value=0.25,
            epsilon=1e-3,
        ),
    ),
    "adam": (
        lambda: keras.optimizers.Adam(0.5, beta_1=0.8, beta_2=0.9, epsilon=1e-3),
        SparseOptimizer(
            "adam", learning_rate=0.5, beta_1=0.8, beta_2=0.9, epsilon=1e-3
        ),
    ),
    "adamw": (
        lambda: keras.optimizers.AdamW(0.5, weight_decay=0.25),
        SparseOptimizer("adam", learning_rate=0.5, weight_decay=0.25),
    ),
    "ftrl": (
        lambda: keras.optimizers.Ftrl(
            0.5,
            learning_rate_power=-0.25,
            initial_accumulator_value=0.125,
            l1_regularization_strength=0.1,
            l2_regularization_strength=0.2,
            l2_shrinkage_regularization_strength=0.3,
            beta=0.4,
        ),
        SparseOptimizer(
            "ftrl",
            learning_rate=0.5,
            learning_rate_power=-0.25,
            initial_accumulator_value=0.125,
            l1=0.1,
            l2=0.2,
            l2_shrinkage=0.3,
            beta=0.4,
        ),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_keras_optimizers_keep_their_numbers(name):
    make, expected = OPTIMIZERS[name]
    assert to_sparse_optimizer(make()) == expected


def test_a_sparse_optimizer_stays_itself():
    rule = SparseOptimizer("rowwise_adagrad", learning_rate=0.5)
    assert to_sparse_optimizer(rule) is rule


def test_any_object_may_say_what_it_means():
    class Ours:
        def sparse_optimizer(self):
            return SparseOptimizer("sgd", learning_rate=0.5)

    assert to_sparse_optimizer(Ours()) == SparseOptimizer("sgd", learning_rate=0.5)


def test_a_schedule_is_left_to_the_optimizer():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    assert to_sparse_optimizer(keras.optimizers.SGD(schedule)).learning_rate == 0.0


@pytest.mark.parametrize(
    "optimizer, option",
    [
        (lambda: keras.optimizers.Adam(amsgrad=True), "amsgrad=True"),
        (lambda: keras.optimizers.Adam(clipnorm=1.5), "clipnorm=1.5"),
        (lambda: keras.optimizers.Adagrad(clipvalue=1.5), "clipvalue=1.5"),
        (lambda: keras.optimizers.Ftrl(global_clipnorm=1.5), "global_clipnorm=1.5"),
        (
            lambda: keras.optimizers.SGD(gradient_accumulation_steps=4),
            "gradient_accumulation_steps=4",
        ),
        (
            lambda: keras.optimizers.Adam(loss_scale_factor=2.0),
            "loss_scale_factor=2.0",
        ),
        (lambda: keras.optimizers.SGD(momentum=0.9), "momentum=0.9"),
        (lambda: keras.optimizers.AdamW(use_ema=True), "use_ema=True"),
    ],
)
def test_options_beyond_a_row_are_refused(optimizer, option):
    name = option.partition("=")[0]
    message = rf"cannot use `{name}`.* Received: \w+\({re.escape(option)}\)\. Leave"
    with pytest.raises(ValueError, match=message):
        to_sparse_optimizer(optimizer())


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.RMSprop, keras.optimizers.Lion, lambda: "adam", lambda: None],
)
def test_other_optimizers_are_refused(optimizer):
    made = optimizer()
    message = (
        "must be one of keras.optimizers.SGD, Adagrad, Adam, AdamW and Ftrl; a "
        "tfctr_ops.SparseOptimizer; or an object with a method sparse_optimizer(). "
        f"Received: optimizer={made!r}."
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        to_sparse_optimizer(made)


def test_a_subclass_may_do_anything_and_is_refused():
    class Special(keras.optimizers.Adam):
        pass

    with pytest.raises(TypeError, match="Received: optimizer=<.*Special object"):
        to_sparse_optimizer(Special())


@pytest.mark.parametrize(
    "initializer, expected",
    [
        ("uniform", RowInitializer("uniform", -0.05, 0.1)),
        ("zeros", RowInitializer("constant", 0.0)),
        ("ones", RowInitializer("constant", 1.0)),
        (keras.initializers.RandomUniform(1.0, 3.0), RowInitializer("uniform", 1, 2)),
        (keras.initializers.RandomNormal(1.0, 3.0), RowInitializer("normal", 1, 3)),
        (
            keras.initializers.TruncatedNormal(1.0, 3.0),
            RowInitializer("truncated_normal", 1.0, 3.0),
        ),
        (keras.initializers.Zeros(), RowInitializer("constant", 0.0)),
        (keras.initializers.Constant(2.5), RowInitializer("constant", 2.5)),
        (RowInitializer("normal", 0.0, 0.5), RowInitializer("normal", 0.0, 0.5)),
    ],
)
def test_initializers_keep_their_law(initializer, expected):
    assert to_row_initializer(initializer) == expected


@pytest.mark.parametrize(
    "initializer", ["glorot_uniform", keras.initializers.Orthogonal(), lambda shape: 0]
)
def test_laws_of_the_shape_of_a_table_are_refused(initializer):
    with pytest.raises(
        ValueError,
        match=re.escape(
            "`initializer` must be RandomUniform, RandomNormal, TruncatedNormal, "
            "Zeros, Ones or Constant"
        )
        + f".* Received: initializer={re.escape(repr(initializer))}",
    ):
        to_row_initializer(initializer)


def test_to_look_at_a_law_draws_no_random_number():
    keras.utils.set_random_seed(1)
    expected = random.random()
    keras.utils.set_random_seed(1)
    to_row_initializer("uniform")
    assert random.random() == expected
