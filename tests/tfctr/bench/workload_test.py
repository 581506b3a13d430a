"""The workload: the numbers that every result rests on, to the digit."""

import numpy as np
import pytest

from tfctr.bench.workload import W4, W, Workload


def test_w_has_the_shape_of_the_yardstick():
    batches = W.batches()
    assert batches.shape == (8, 4096, 26)
    assert batches.dtype == np.int64
    assert batches[0].size == 106_496
    assert W.num_rows == 2_600_000


def test_number_of_different_ids_is_that_of_the_yardstick():
    assert np.median(W.num_unique()) == 48_988
    assert np.median(W4.num_unique()) == 54_225


def test_ids_are_the_same_in_every_process():
    batches = W.batches()
    assert batches[0, 0, :4].tolist() == [72830, 96049, 7614, 39123]
    assert batches[7, -1, -4:].tolist() == [72176, 654, 20067, 0]


def test_ids_follow_the_power_law():
    # The share of the hottest rank, by the inverse distribution function over [1, R+1).
    rows, power = W.rows_per_field, 1.0 - W.exponent
    share = (1.0 - 2.0**power) / (1.0 - float(rows + 1) ** power)
    hottest = np.mean(W.batches() == 0)
    assert hottest == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("workload", [W, W4], ids=["W", "W4"])
def test_ids_stay_within_their_field(workload):
    batches = workload.batches()
    assert batches.min() == 0
    assert batches.max() < workload.rows_per_field


@pytest.mark.parametrize("rows", [10, 1000, 100_000, 400_000])
def test_hot_ids_are_spread_without_a_collision(rows):
    ids = np.arange(rows) * 2654435761 % rows
    assert np.unique(ids).size == rows


def test_offsets_keep_fields_apart():
    small = Workload(num_fields=3, rows_per_field=10, batch_size=50)
    rows = small.batches() + small.offsets()
    np.testing.assert_array_equal(rows // 10, np.broadcast_to([0, 1, 2], rows.shape))


def test_gradient_clicks_and_dense_features_have_the_shape_of_a_batch():
    small = Workload(num_fields=3, rows_per_field=10, batch_size=5, dim=4)
    assert small.gradient().shape == (5, 3, 4)
    assert small.dense_features(13).shape == (8, 5, 13)
    assert set(np.unique(small.labels())) == {0.0, 1.0}


def test_same_arguments_give_the_same_data():
    np.testing.assert_array_equal(W.gradient(), Workload().gradient())
    np.testing.assert_array_equal(W.labels(), Workload().labels())
