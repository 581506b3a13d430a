"""`StepLosses`: the loss of each batch, against the formula, not a running mean."""

import keras
import numpy as np
import pytest

from tfctr.callbacks import StepLosses

X = np.arange(1.0, 13.0, dtype="float32")[:, None]


def fit(losses, learning_rate, **options):
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")]
    )
    model.compile(keras.optimizers.SGD(learning_rate), "mean_squared_error", **options)
    return model.fit(
        X,
        np.zeros_like(X),
        batch_size=4,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[losses],
    )


def batch_losses():
    """Of the model that predicts x where 0 is right."""
    return [float(np.mean(X[start : start + 4] ** 2)) for start in (0, 4, 8)]


def test_each_step_has_its_own_loss():
    losses = StepLosses()
    history = fit(losses, learning_rate=0.0)
    # 7.5, 43.5 and 111.5: exact in float32.
    assert losses.losses == batch_losses() * 2
    # The epoch's loss is that of its last step, as the docstring warns.
    assert history.history["loss"] == [111.5, 111.5]


def test_the_losses_are_of_the_weights_before_each_step():
    losses = StepLosses()
    rate = 2.0**-12
    fit(losses, learning_rate=rate)
    w, b, expected = 1.0, 0.0, []
    for start in (0, 4, 8) * 2:
        x = X[start : start + 4].astype("float64")
        y = w * x + b
        expected.append(np.mean(y**2))
        w, b = w - rate * np.mean(2 * y * x), b - rate * np.mean(2 * y)
    np.testing.assert_allclose(losses.losses, expected, rtol=1e-5)


def test_an_entry_is_the_mean_of_the_steps_of_an_execution():
    losses = StepLosses()
    fit(losses, learning_rate=0.0, steps_per_execution=3)
    assert losses.losses == pytest.approx([np.mean(batch_losses())] * 2, rel=1e-6)


def test_a_list_goes_on_over_trainings():
    losses = StepLosses()
    fit(losses, learning_rate=0.0)
    fit(losses, learning_rate=0.0)
    assert losses.losses == batch_losses() * 4
