"""What every metric refuses, and how it says so."""

import re

import numpy as np
import pytest

from tfctr.metrics import auc, log_loss


@pytest.fixture(params=[(auc, "scores"), (log_loss, "probabilities")])
def metric(request):
    return request.param


@pytest.mark.parametrize(
    ("labels_shape", "scores_shape"), [((4,), (4, 1)), ((4,), (5,)), ((4, 1), (4, 1))]
)
def test_shapes_must_be_one_and_flat(metric, labels_shape, scores_shape):
    function, name = metric
    message = (
        f"Received: labels.shape={labels_shape}, {name}.shape={scores_shape}. Flatten"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        function(np.zeros(labels_shape), np.zeros(scores_shape))


def test_no_example_is_refused(metric):
    function, name = metric
    with pytest.raises(ValueError, match=f"`{name}` must hold at least one .* empty"):
        function([], [])


@pytest.mark.parametrize("label", [2, -1, 0.5, float("nan")])
def test_labels_must_be_zeros_and_ones(metric, label):
    function, _ = metric
    with pytest.raises(ValueError, match=rf"Received: labels\[2\]={label}. Turn"):
        function([0, 1, label], [0.1, 0.2, 0.3])


def test_nan_is_refused(metric):
    function, name = metric
    message = f"Received: {name}[1]=nan, and 2 NaN in all. The model has diverged"
    with pytest.raises(ValueError, match=re.escape(message)):
        function([0, 1, 1], [0.1, np.nan, np.nan])
