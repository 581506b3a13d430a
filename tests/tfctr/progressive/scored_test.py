"""Metrics of windows, where there is something to measure and where not."""

import math

import numpy as np
import pytest

from tfctr.progressive.scored import Scored, mean_of


def test_metrics_of_one_class_or_of_nothing_are_nan():
    one = np.ones(2, np.float32)
    scored = Scored(one, one * 0.5, one, {"popularity": one})
    found = scored.metrics()
    assert math.isnan(found["auc"]) and math.isnan(found["popularity_auc"])
    assert found["log_loss"] == pytest.approx(math.log(2))
    empty = Scored(*[np.zeros(0, np.float32)] * 3, {})
    assert all(map(math.isnan, empty.metrics().values()))


def test_the_mean_of_windows_leaves_out_what_is_nan():
    windows = [
        {"tested_examples": 2, "auc": 0.5},
        {"tested_examples": 9, "auc": math.nan},
        {"tested_examples": 6, "auc": 0.9},
    ]
    assert mean_of(windows, ["auc"]) == {"auc": pytest.approx(0.8)}
    assert math.isnan(mean_of(windows[1:2], ["auc"])["auc"])
