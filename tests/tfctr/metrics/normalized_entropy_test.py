"""`normalized_entropy` and `calibration` against their definitions, written out."""

import math

import keras
import numpy as np
import pytest

from tfctr.metrics import (
    Calibration,
    NormalizedEntropy,
    calibration,
    log_loss,
    normalized_entropy,
)

LABELS = [1, 0, 0, 1, 0, 0, 0, 0]
PROBABILITIES = [0.9, 0.2, 0.1, 0.6, 0.3, 0.1, 0.05, 0.25]


def entropy(rate):
    return -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


def test_entropy_of_the_click_rate_is_one():
    assert normalized_entropy(LABELS, [0.25] * 8) == pytest.approx(1.0, abs=1e-12)


def test_entropy_is_the_loss_over_that_of_the_click_rate():
    expected = log_loss(LABELS, PROBABILITIES) / entropy(0.25)
    assert normalized_entropy(LABELS, PROBABILITIES) == pytest.approx(expected)
    assert expected < 1


def test_calibration_is_predicted_clicks_over_clicks():
    assert calibration(LABELS, PROBABILITIES) == pytest.approx(sum(PROBABILITIES) / 2)


def test_one_kind_of_labels_is_refused():
    message = "Normalised entropy divides .* Received: 0 ones and 2 zeros"
    with pytest.raises(ValueError, match=message):
        normalized_entropy([0, 0], [0.5, 0.5])
    with pytest.raises(ValueError, match="must hold a click. Received: 2 zeros"):
        calibration([0, 0], [0.5, 0.5])


@pytest.mark.parametrize("metric", [normalized_entropy, calibration])
def test_logits_are_refused(metric):
    with pytest.raises(ValueError, match=r"Received: probabilities\[1\]=2.0"):
        metric([0, 1], [0.5, 2.0])


@pytest.mark.parametrize(
    ("running", "exact"),
    [(NormalizedEntropy, normalized_entropy), (Calibration, calibration)],
)
def test_batches_add_up(running, exact):
    metric = running()
    for part in (slice(0, 3), slice(3, 8)):
        metric.update_state(
            np.array(LABELS, "float32")[part, None],
            np.array(PROBABILITIES, "float32")[part, None],
        )
    expected = exact(LABELS, PROBABILITIES)
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)
    metric.reset_state()
    metric.update_state(LABELS, PROBABILITIES, sample_weight=[1, 1, 1, 1, 0, 0, 0, 0])
    expected = exact(LABELS[:4], PROBABILITIES[:4])
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("running", [NormalizedEntropy, Calibration])
def test_a_model_is_compiled_with_it(running):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=[running()])
    x = np.random.default_rng(0).normal(size=(64, 2))
    labels = (x[:, 0] > 0).astype("float32")
    logs = model.evaluate(x, labels, batch_size=10, return_dict=True, verbose=0)
    exact = {"normalized_entropy": normalized_entropy, "calibration": calibration}
    name = running().name
    expected = exact[name](labels, model.predict(x, verbose=0)[:, 0])
    assert logs[name] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("running", [NormalizedEntropy, Calibration])
def test_one_weight_may_stand_for_all(running):
    metrics = running(), running()
    metrics[0].update_state(LABELS, PROBABILITIES)
    metrics[1].update_state(LABELS, PROBABILITIES, sample_weight=2.0)
    results = [float(metric.result()) for metric in metrics]
    assert results[1] == pytest.approx(results[0], rel=1e-6)


def test_a_model_is_saved_with_them(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])
    model.compile(
        "sgd", "binary_crossentropy", metrics=[NormalizedEntropy(), Calibration()]
    )
    x, labels = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([1.0, 0.0])
    expected = model.evaluate(x, labels, return_dict=True, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    found = loaded.evaluate(x, labels, return_dict=True, verbose=0)
    assert {"normalized_entropy", "calibration"} <= set(found)
    assert found == pytest.approx(expected)
