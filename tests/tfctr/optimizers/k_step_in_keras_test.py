"""What Keras does around an optimizer, with `KStepAdam`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr.optimizers import KStepAdam

FROZEN, WEIGHTS, MOMENTS = "frozen_denominator", "parameters", "parameters_and_moments"
MODES = (FROZEN, WEIGHTS, MOMENTS)


def value(variable):
    return keras.ops.convert_to_numpy(variable).tolist()


def variable_of(start, dtype="float64"):
    return keras.Variable(start, dtype=dtype, name="x")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_slices_are_summed_before_they_are_squared(dtype):
    table, dense = variable_of([[1.0], [1.0]], "float32"), variable_of([[1.0], [1.0]])
    twice = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1], dtype))
    KStepAdam(0.1, k=1).apply([twice], [table])
    KStepAdam(0.1, k=1).apply([tf.constant([[0.0], [2.0]])], [dense])
    np.testing.assert_allclose(value(table), value(dense), rtol=1e-6)


@pytest.mark.parametrize(
    ("option", "clipped"),
    [
        ({"clipnorm": 1.0}, ([0.6, 0.8], [1.0])),
        ({"clipvalue": 2.0}, ([2.0, 2.0], [2.0])),
        ({"global_clipnorm": 1.3}, ([0.3, 0.4], [1.2])),
    ],
)
def test_gradients_are_clipped(option, clipped):
    variables = [variable_of([0.0, 0.0]), variable_of([0.0])]
    optimizer = KStepAdam(0.1, k=1, **option)
    optimizer.apply([tf.constant([3.0, 4.0]), tf.constant([12.0])], variables)
    momentums = [one for one in optimizer.variables if one.name.endswith("_momentum")]
    for momentum, gradient in zip(momentums, clipped, strict=True):
        np.testing.assert_allclose(value(momentum), 0.1 * np.array(gradient), 1e-6)


def test_constraints_hold_after_each_step():
    variable = keras.layers.Dense(2, kernel_constraint=keras.constraints.NonNeg())
    variable.build((None, 1))
    optimizer = KStepAdam(10.0, k=2)
    optimizer.apply([tf.ones((1, 2))], [variable.kernel])
    assert value(variable.kernel) == [[0.0, 0.0]]


def test_learning_rates_may_be_schedules_and_change():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])
    variable = variable_of(0.0, "float32")
    optimizer = KStepAdam(schedule, k=1, merge=WEIGHTS)
    for _ in range(2):
        optimizer.apply([tf.constant(1.0)], [variable])
    assert value(variable) == pytest.approx(-1.0, abs=1e-6)
    optimizer = KStepAdam(1.0, k=1, merge=WEIGHTS)
    optimizer.learning_rate = 0.5
    optimizer.apply([tf.constant(1.0)], [variable])
    assert value(variable) == pytest.approx(-1.5, abs=1e-6)


def test_variables_without_gradient_stay_and_are_told():
    here, there = variable_of(1.0), variable_of(2.0)
    optimizer = KStepAdam(0.1, k=1)
    optimizer.apply([], [])
    with pytest.warns(UserWarning, match=r"The loss has no gradient for \['x'\]"):
        optimizer.apply([tf.constant(1.0), None], [here, there])
    assert value(here) < 1.0 and value(there) == 2.0
    optimizer.apply([tf.constant(1.0), tf.constant(1.0)])
    assert value(there) < 2.0
    assert int(optimizer.iterations) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"k": 4},
        {"k": 1, "warmup_merges": 0, "bias_correction": True, "amsgrad": False},
        {"k": 3, "merge": WEIGHTS, "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-3},
        {"k": 3, "merge": MOMENTS, "clipnorm": 1.0, "name": "mine"},
    ],
)
def test_the_config_makes_the_same_optimizer(options):
    optimizer = KStepAdam(1e-2, **options)
    config = optimizer.get_config()
    assert options.items() <= config.items()
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, KStepAdam)
    assert again.get_config() == config


@pytest.mark.parametrize("merge", MODES)
def test_a_saved_model_goes_on_as_it_was(merge, tmp_path):
    inputs = np.random.default_rng(6).normal(size=(5 * 4, 2))
    labels = inputs.sum(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = KStepAdam(1e-2, k=2, merge=merge)
    model.compile(optimizer, "mean_squared_error")
    model.fit(inputs, labels, batch_size=4, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one in (model, loaded):
        one.fit(inputs, labels, batch_size=4, shuffle=False, verbose=0)
        one.optimizer.merge()
    assert loaded.optimizer.merges == optimizer.merges
    assert sum(optimizer.merges.values()) >= 5
    for here, there in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({"warmup_merges": 1}, 40, np.inf),
        ({}, 3, 10),
        ({"bias_correction": True}, 1, 2.4),
    ],
)
def test_warm_up_merges_bound_the_steps_of_sparse_inputs(options, least, most):
    keras.utils.set_random_seed(5)
    inputs = np.random.default_rng(5).random((200 * 64, 30)) < 0.1
    labels = inputs @ np.linspace(-1, 1, 30) > 0
    model = keras.Sequential(
        [
            keras.Input((30,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    optimizer = KStepAdam(1e-3, k=10, **options)
    model.compile(optimizer, "binary_crossentropy")
    model.fit(inputs.astype("float32"), labels, batch_size=64, verbose=0)
    assert least < optimizer.take_largest_step() < most


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_step_that_finds_the_end_of_the_data_does_not_count():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = KStepAdam(1e-3, k=2, merge=WEIGHTS)
    model.compile(optimizer, "mean_squared_error")
    batch = (tf.ones((4, 2)), tf.ones((4, 1)))
    # Keras does not know how many batches these are.
    data = tf.data.Dataset.from_tensors(batch).repeat(5).filter(lambda *_: True)
    model.fit(data, epochs=3, shuffle=False, verbose=0)
    assert int(optimizer.iterations) == 15
    assert optimizer.merges == {"scheduled": 7, "forced": 0}


def test_forced_merges_before_the_first_step_do_nothing():
    optimizer = KStepAdam(k=3)
    optimizer.merge()
    assert optimizer.merges == {"scheduled": 0, "forced": 0}
    assert optimizer.take_largest_step() == 0.0
    optimizer.build([variable_of(1.0)])
    optimizer.merge()
    assert optimizer.merges == {"scheduled": 0, "forced": 0}
