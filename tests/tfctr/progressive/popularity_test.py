"""`Popularity`: the baselines, against counts by hand."""

import collections
import re

import numpy as np
import pytest

from helpers import timed_logs
from tfctr import progressive


def test_baselines_equal_counts_by_hand():
    columns = timed_logs.draw_log(400)
    times, items = columns["time"] * timed_logs.SECOND, columns["ad"]
    past = progressive.Popularity(recent_seconds=1800.0, pool_seconds=5000.0)
    for start in range(7200, 7200 + 6 * 3600, 1200):
        now = start * timed_logs.SECOND
        before = times < now
        asked = np.array([*np.unique(items), -5])
        scores = past.scores(now, asked)
        assert list(scores) == ["popularity", "recent_popularity", "trend"]
        every = collections.Counter(items[before].tolist())
        recent = collections.Counter(
            items[before & (times >= now - 1800 * timed_logs.SECOND)].tolist()
        )
        pool = collections.Counter(
            items[before & (times >= now - 5000 * timed_logs.SECOND)].tolist()
        )
        f = max(recent.total(), 1) / max(pool.total(), 1)
        for index, item in enumerate(asked.tolist()):
            assert {name: values[index] for name, values in scores.items()} == {
                "popularity": every[item] / max(every.total(), 1),
                "recent_popularity": recent[item] / max(recent.total(), 1),
                "trend": pytest.approx(
                    (recent[item] + 10 * f) / (f * (pool[item] + 10))
                ),
            }
        window = (times >= now) & (times < now + 1200 * timed_logs.SECOND)
        past.add(times[window], items[window])


def test_without_a_pool_there_is_no_trend():
    past = progressive.Popularity(recent_seconds=1.0)
    scores = past.scores(0, np.array([b"x"], object))
    assert list(scores) == ["popularity", "recent_popularity"]


@pytest.mark.parametrize("seconds", [0, 1e12, 1e300])
@pytest.mark.parametrize("name", ["recent_seconds", "pool_seconds"])
def test_spans_are_positive_and_of_146_years_at_most(name, seconds):
    message = (
        f"`{name}` must be a positive number of seconds, of 146 years at most. "
        f"Received: {name}={seconds!r}."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        progressive.Popularity(**{"recent_seconds": 1.0, name: seconds})
