"""`Throughput`: its arithmetic, on a clock of our own."""

import keras
import numpy as np
import pytest

from helpers.clock import Clock
from tfctr.callbacks import Throughput


@pytest.fixture
def clock(clock, monkeypatch):
    monkeypatch.setattr("time.perf_counter", clock)
    return clock


def run_batches(callback, clock, batches, seconds):
    for batch in batches:
        clock.now += seconds
        callback.on_train_batch_end(batch)


def test_nothing_has_no_speed():
    assert Throughput(batch_size=8).examples_per_second == 0.0


def test_the_mean_is_over_all_batches_that_count(clock):
    callback = Throughput(batch_size=10, warm_up_batches=2)
    callback.on_epoch_begin(0)
    run_batches(callback, clock, [0, 1], seconds=1000.0)
    run_batches(callback, clock, [2, 3], seconds=1.0)
    run_batches(callback, clock, [4], seconds=3.0)
    assert callback.examples_per_second == 3 * 10 / 5.0


def test_the_first_batches_count_where_there_are_no_others(clock):
    callback, logs = Throughput(batch_size=10), {}
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        run_batches(callback, clock, [0, 1], seconds=2.0 if epoch == 0 else 0.5)
        callback.on_epoch_end(epoch, logs)
    assert logs["examples_per_second"] == 4 * 10 / 5.0
    run_batches(callback, clock, [2], seconds=5.0)
    assert callback.examples_per_second == 5 * 10 / 10.0
    run_batches(callback, clock, [3], seconds=0.5)
    assert callback.examples_per_second == 10 / 0.5


def test_warm_up_counts_over_epochs(clock):
    callback = Throughput(batch_size=10, warm_up_batches=5)
    for epoch in range(4):  # Two batches each.
        callback.on_epoch_begin(epoch)
        run_batches(callback, clock, [0, 1], seconds=1.0 if epoch < 3 else 2.0)
        callback.on_epoch_end(epoch)
    # Batch 5 took a second, 6 and 7 took two.
    assert callback.examples_per_second == 3 * 10 / 5.0


def test_neither_validation_nor_the_time_between_epochs_counts(clock):
    callback = Throughput(batch_size=10, warm_up_batches=0)
    for epoch in range(3):
        callback.on_epoch_begin(epoch)
        run_batches(callback, clock, range(4), seconds=0.5)
        callback.on_test_begin()
        clock.now += 1000.0
        callback.on_test_end()
        callback.on_epoch_end(epoch)
        clock.now += 1000.0
    assert callback.examples_per_second == 20.0


def test_validation_within_an_epoch_does_not_count(clock):
    callback = Throughput(batch_size=10, warm_up_batches=0)
    callback.on_epoch_begin(0)
    run_batches(callback, clock, [0], seconds=0.5)
    callback.on_test_begin()
    clock.now += 1000.0
    run_batches(callback, clock, [1], seconds=0.5)  # Not told from the validation.
    run_batches(callback, clock, [2], seconds=0.5)
    assert callback.examples_per_second == 20.0


def test_an_epoch_that_broke_off_leaves_nothing_behind(clock):
    callback = Throughput(batch_size=10, warm_up_batches=0)
    callback.on_epoch_begin(0)
    run_batches(callback, clock, [0, 1, 2], seconds=0.5)
    callback.on_epoch_begin(0)
    run_batches(callback, clock, [0, 1, 2], seconds=0.5)
    assert callback.examples_per_second == 20.0


def test_the_logs_of_batches_and_epochs_tell_the_speed(clock):
    callback = Throughput(batch_size=10, warm_up_batches=0)
    callback.on_epoch_begin(0)
    clock.now += 2.0
    of_batch, of_epoch = {"loss": 1.0}, {"loss": 1.0}
    callback.on_train_batch_end(0, of_batch)
    callback.on_epoch_end(0, of_epoch)
    assert of_batch == of_epoch == {"loss": 1.0, "examples_per_second": 5.0}


@pytest.mark.parametrize(
    ("steps_per_execution", "warm_up", "expected"),
    [
        # Ten batches of two examples in as many calls, a second each; twice.
        (1, 0, 2 * 10 * 2 / 20),
        (1, 5, (5 + 10) * 2 / 15),
        # Calls end batches 0-3, 4-7, 8 and 9; Keras calls the last one's end 11.
        (4, 0, 2 * 10 * 2 / 6),
        (4, 5, (2 + 10) * 2 / 4),
        # One call an epoch.
        (10, 5, 10 * 2 / 1),
        (16, 5, 10 * 2 / 1),
    ],
)
def test_fit_with_steps_per_execution(
    steps_per_execution, warm_up, expected, monkeypatch
):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mean_squared_error", steps_per_execution=steps_per_execution)
    callback = Throughput(batch_size=2, warm_up_batches=warm_up)
    x = np.zeros((20, 1), np.float32)
    monkeypatch.setattr("tfctr.callbacks.throughput.time.perf_counter", Clock(tick=1.0))
    history = model.fit(
        x, x, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=[callback]
    )
    assert callback.examples_per_second == pytest.approx(expected, rel=1e-12)
    assert history.history["examples_per_second"][-1] == callback.examples_per_second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "`batch_size` must be an integer of 1 or more. Received: batch_size=0."),
        (("8",), "Received: batch_size='8'."),
        ((8, -1), "must be an integer of 0 or more. Received: warm_up_batches=-1."),
    ],
)
def test_counts_must_be_in_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        Throughput(*arguments)
