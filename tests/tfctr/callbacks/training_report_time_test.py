"""`TrainingReport` and time: how long a line is, what counts, and when it is drawn."""

import json
import math
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr.callbacks import TrainingReport, training_report


def lines_of(directory):
    """What is told of each interval."""
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "steps"]


def test_neither_validation_nor_the_time_between_epochs_counts(
    tmp_path, monkeypatch, clock
):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    report = TrainingReport(tmp_path, every=2, page=False, tensorboard=False)
    report.set_model(model)
    monkeypatch.setattr(time, "perf_counter", clock)
    report.on_train_begin()
    for epoch in range(2):
        report.on_epoch_begin(epoch)
        for batch in range(4):
            clock.now += 0.5
            report.on_train_batch_end(batch, {"loss": math.nan})
            report.on_test_begin()
            clock.now += 1000.0
            report.on_test_end()
        report.on_epoch_end(epoch, {"loss": 1.0})
        clock.now += 1000.0
    lines = lines_of(tmp_path)
    assert [line["seconds"] for line in lines] == [1.0] * 4
    # JSON has no NaN.
    assert [line["metrics"] for line in lines] == [{"loss": None}] * 4


@pytest.mark.parametrize(
    ("step_seconds", "steps", "expected"),
    [
        (0.01, 1600, [1, 1, 8, 64, 500, 500, 500]),
        # Beyond 5000 seconds more, and thirty at the most.
        (1000.0, 12, [1] * 12),
        (1.0, 40_000, None),
    ],
)
def test_by_default_a_line_takes_five_to_thirty_seconds(
    step_seconds, steps, expected, tmp_path, monkeypatch, clock
):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    report = TrainingReport(tmp_path, page=False, tensorboard=False)
    report.set_model(model)
    monkeypatch.setattr(time, "perf_counter", clock)
    report.on_train_begin()
    report.on_epoch_begin(0)
    for batch in range(steps):
        # The first one compiles.
        clock.now += max(4.0, step_seconds) if batch == 0 else step_seconds
        report.on_train_batch_end(batch)
    lines = lines_of(tmp_path)
    lengths = [line["steps"] for line in lines]
    if expected is not None:
        assert lengths == expected
    else:
        assert lengths[2:900] == [5] * 898 and lengths[-1] == 30
        assert all(line["seconds"] <= 30.0 for line in lines)
        assert len(lines) < 3500


def test_input_is_what_the_data_takes(tmp_path):
    took = []

    def slow():
        for _ in range(5):
            start = time.time()
            np.sort(np.random.default_rng(0).random(200_000))
            took.append(time.time() - start)
            yield np.zeros((2, 1), np.float32)

    spec = tf.TensorSpec((2, 1), tf.float32)
    dataset = tf.data.Dataset.from_generator(slow, output_signature=spec)
    report = TrainingReport(tmp_path, page=False, tensorboard=False)
    for _ in report.watch(dataset):
        pass
    seconds, examples = report._input.read()
    assert examples == 10
    # What another prefetching stage would have hidden.
    assert seconds >= 0.9 * sum(took)


@pytest.mark.parametrize(
    ("draw_seconds", "drawn_at"),
    [
        # At the end of the training all is drawn.
        (0.0, [1.0, 2.0, 3.0, 4.0]),
        # A share of 0.04 of an epoch, and one of 0.2: below 0.05 of more than four.
        (0.04, [1.0, 2.04, 3.08, 4.12]),
        (0.2, [1.0, 4.2]),
    ],
)
def test_the_page_is_drawn_while_that_takes_little_time(
    draw_seconds, drawn_at, tmp_path, monkeypatch, clock
):
    drawn = []

    def draw(directory):
        drawn.append(round(clock.now - 100.0, 3))
        clock.now += draw_seconds

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    report = TrainingReport(tmp_path, every=1, tensorboard=False)
    report.set_model(model)
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(training_report, "draw", draw)
    report.on_train_begin()
    for epoch in range(4):
        report.on_epoch_begin(epoch)
        clock.now += 1.0
        report.on_train_batch_end(0)
        report.on_epoch_end(epoch)
    report.on_train_end()
    assert drawn == drawn_at
