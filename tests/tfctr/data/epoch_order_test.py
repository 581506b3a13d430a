"""The order of an epoch: a frozen permutation for each (seed, epoch, split)."""

import numpy as np
import pytest

from tfctr.data.epoch_order import epoch_order


def test_order_is_frozen():
    assert epoch_order(8, 0, 0, "train").tolist() != list(range(8))
    assert epoch_order(8, 0, 0, "train").tolist() == [6, 2, 5, 3, 0, 1, 4, 7]
    assert epoch_order(8, 0, 1, "train").tolist() == [6, 4, 2, 1, 7, 3, 5, 0]
    assert epoch_order(8, 1, 0, "train").tolist() == [0, 3, 6, 5, 7, 1, 4, 2]
    assert epoch_order(8, 0, 0, "test").tolist() == [3, 0, 6, 5, 1, 4, 7, 2]


@pytest.mark.parametrize("num_examples", [0, 1, 2, 63, 64, 65, 1000])
def test_every_example_is_visited_once(num_examples):
    order = epoch_order(num_examples, 5, 3, "train")
    assert sorted(order.tolist()) == list(range(num_examples))


def test_no_seed_means_the_order_of_the_log():
    assert epoch_order(4, None, 9, "test").tolist() == [0, 1, 2, 3]


def test_neighbours_are_scattered():
    order = epoch_order(100_000, 0, 0, "train")
    correlation = np.corrcoef(order[:-1], order[1:])[0, 1]
    # Six standard deviations of the correlation of 100,000 independent pairs.
    assert abs(correlation) < 6 / np.sqrt(100_000)
