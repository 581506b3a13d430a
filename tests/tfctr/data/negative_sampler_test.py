"""`NegativeSampler`: non-clicks come from the clicks of the past."""

import collections

import numpy as np
import pytest

from helpers import timed_logs
from tfctr.data import FeatureDeclaration, NegativeSampling
from tfctr.data.negative_sampler import NegativeSampler

SAMPLING = NegativeSampling(3, pool_seconds=3000.0, seed=5)


def drawn_by_click(path, seconds, sampling=SAMPLING):
    """By row: label and item of its examples, and whether they are tested."""
    features = [timed_logs.ITEM, FeatureDeclaration("row")]
    log = timed_logs.open_log(path, negatives=sampling, features=features)
    found = collections.defaultdict(list)
    for window in log.windows(seconds):
        rows, items = (
            timed_logs.examples_of(window.log, name) for name in ("row", "item")
        )
        assert items.tolist() == window.items.tolist()
        examples = zip(rows, window.labels, items, window.is_tested, strict=True)
        for row, *example in examples:
            found[int(row)].append(tuple(part.item() for part in example))
    return found


def test_negatives_come_from_the_pool_of_the_past(write_log):
    columns = timed_logs.draw_log()
    found = drawn_by_click(write_log(columns), 3600)
    times, items = columns["time"], columns["ad"]
    assert sorted(found) == list(range(len(times)))
    for row, examples in found.items():
        pool = set(items[(times < times[row]) & (times >= times[row] - 3000)].tolist())
        (label, item, is_tested), *negatives = examples
        assert (label, item) == (1, items[row])
        assert len(negatives) == (3 if pool else 0)
        assert {(label, known) for label, _, known in negatives} <= {(0, is_tested)}
        assert {item for _, item, _ in negatives} <= pool
        assert is_tested == (item in pool)


def test_negatives_are_the_same_for_all_windows_and_files(write_log):
    columns = timed_logs.draw_log()
    found = drawn_by_click(write_log(columns), 3600)
    assert drawn_by_click(write_log(columns, group=13), 3600) == found
    assert drawn_by_click(write_log(columns, files=3), 900) == found
    other = NegativeSampling(3, pool_seconds=3000.0, seed=6)
    assert drawn_by_click(write_log(columns), 3600, other) != found


def test_what_comes_later_does_not_change_negatives(write_log):
    columns = timed_logs.draw_log()
    found = drawn_by_click(write_log(columns), 3600)
    changed = {**columns, "ad": columns["ad"].copy()}
    changed["ad"][300:] = -1
    other = drawn_by_click(write_log(changed), 3600)
    assert [other[row] for row in range(300)] == [found[row] for row in range(300)]


def test_negatives_are_drawn_by_popularity():
    times = np.zeros(10, np.int64)
    items = np.array([7] * 6 + [8] * 3 + [9])
    sampler = NegativeSampler(NegativeSampling(2000, seed=3))
    assert sampler.draw(times, items).labels.all()  # None lies before another.
    drawn = sampler.draw(np.array([timed_logs.SECOND]), np.array([7]))
    shares = [np.mean(drawn.items[1:] == item) for item in (7, 8, 9)]
    # Four standard deviations of the largest.
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=4 * (0.24 / 2000) ** 0.5)
