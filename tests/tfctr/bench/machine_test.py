import os

import pytest

from tfctr.bench import machine


class Clock:
    """A clock that a fake measurement moves by a second."""

    def __init__(self, shares):
        self.now = 0.0
        self.shares = list(shares)

    def __call__(self):
        return self.now

    def measure(self):
        self.now += 1.0
        return self.shares.pop(0)


def wait(shares, limit=20.0):
    clock = Clock(shares)
    result = machine.wait_for_quiet(limit, clock.measure, clock)
    return result, clock


def test_quiet_machine_is_looked_at_once():
    result, clock = wait([0.02])
    assert (result.seconds, result.share, result.is_quiet) == (0.0, 0.02, True)
    assert clock.shares == []


def test_busy_machine_is_waited_for_until_it_is_quiet():
    result, clock = wait([0.9, 0.5, 0.3, 0.05, 0.9])
    assert (result.seconds, result.share, result.is_quiet) == (4.0, 0.05, True)
    assert clock.shares == [0.9]


def test_wait_ends_at_the_limit_and_says_that_the_machine_is_busy():
    result, clock = wait([0.8] * 100)
    assert (result.seconds, result.share, result.is_quiet) == (20.0, 0.8, False)
    assert clock.now == 20.0


def test_no_patience_means_one_look():
    result, clock = wait([0.8] * 100, limit=0.0)
    assert not result.is_quiet
    assert clock.now == 1.0


def test_own_work_is_not_counted_as_that_of_others(monkeypatch):
    busy, own, now = iter([100.0, 101.5]), iter([7.0, 8.0]), iter([0.0, 1.0])
    monkeypatch.setattr(machine, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(machine, "_own_seconds", lambda: next(own))
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    # 1.5 busy seconds of 2 possible ones, of which 1 was ours.
    assert machine.LoadMeter().share() == pytest.approx(0.25)


def test_share_of_others_is_a_share():
    assert 0.0 <= machine.measure_share(0.05) <= 1.0


def test_description_names_what_changes_a_measurement():
    facts = machine.describe()
    assert facts["cores"] == os.cpu_count()
    assert facts["memory_gb"] > 0
    assert len(facts["load_average"]) == 3
    assert facts["transparent_huge_pages"] in ("always", "madvise", "never", "unknown")
    assert facts["cpu"]
