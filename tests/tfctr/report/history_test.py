"""A run as its events tell it, against sums by hand."""

import pytest

from tfctr.report import History
from tfctr.report.history import all_tables, merge, speed, time_shares
from tfctr.report.numbers import duration, short
from tfctr.report.table_counts import changes, tiers

STATS = {"rows": 10, "found_rows": 6, "promoted_rows": 1, "inserted_rows": 3}


def line(step, steps=10, **tables):
    return {
        "kind": "steps",
        "time": 100.0 + step,
        "step": step,
        "steps": steps,
        "epoch": 0,
        "seconds": 2.0,
        "examples": 640,
        "input_seconds": None,
        "lookup_seconds": 0.5,
        "update_seconds": 0.25,
        "dense_seconds": 1.25,
        "metrics": {"loss": 1.0 / step},
        "tables": tables,
    }


def begin(step, ranks=1):
    return {"kind": "begin", "step": step, "ranks": ranks, "time": 0.0}


def history_of(*events):
    history = History()
    for event in events:
        history.add([event])
    return history


def steps_of(history):
    return [event["step"] for event in history.intervals]


def test_a_run_that_resumes_does_again_what_came_after():
    first = [begin(0), line(10), line(20), line(30)]
    assert steps_of(history_of(*first, begin(20), line(31))) == [10, 20, 31]
    # The interval in which the run ended is lost.
    assert steps_of(history_of(*first, begin(25), line(35))) == [10, 20, 35]
    assert steps_of(history_of(*first, begin(30), line(40))) == [10, 20, 30, 40]
    again = history_of(*first, begin(0, ranks=4), line(10))
    assert (steps_of(again), again.ranks) == ([10], 4)


def test_the_first_interval_after_a_begin_is_not_warm():
    history = history_of(begin(0), line(1), line(11), begin(11), line(12), line(22))
    assert [event["step"] for event in history.warm()] == [11, 22]
    only = history_of(begin(0), line(1))
    assert only.warm() == only.intervals


def test_counts_add_up_and_sizes_are_the_last():
    changed = {"rows": 12, "found_rows": 9, "inserted_rows": 2, "clipped_rows": 4}
    merged = merge([line(10, a=STATS), line(20, a=changed | {"updated_rows": 8}, b={})])
    assert merged["step"] == 20 and merged["steps"] == 20
    assert merged["seconds"] == 4.0 and merged["examples"] == 1280
    assert merged["input_seconds"] is None and merged["lookup_seconds"] == 1.0
    assert merged["metrics"] == {"loss": 1 / 20}
    assert merged["tables"]["a"] == {
        "rows": 12,
        "found_rows": 15,
        "promoted_rows": 1,
        "inserted_rows": 5,
        "clipped_rows": 4,
        "updated_rows": 8,
        "clipped_share": 0.5,
        "hit_rate": 15 / 21,
        "ssd_hit_rate": 1 / 6,
    }
    assert merged["tables"]["b"] == {}
    assert speed(merged) == 320.0
    shares = {"lookup": 0.25, "dense": 0.625, "update": 0.125}
    assert time_shares(merged) == shares


def test_totals_are_right_whenever_they_are_asked_for():
    events = [begin(0), *(line(10 * i, a=STATS) for i in range(1, 6)), begin(20)]
    events += [line(23, steps=3, b=STATS), line(30, a=STATS), begin(0), line(1)]
    history = History()
    for event in events:
        history.add([event])
        assert history.total() == merge(history.intervals)
        assert history.warm_total() == merge(history.warm())


def test_nothing_adds_up_to_nothing():
    history = History()
    whole = history.total()
    assert (whole["steps"], whole["seconds"], whole["examples"]) == (0, 0.0, None)
    assert speed(whole) is None and time_shares(whole) == {}
    assert all_tables(whole) == {} and history.thinned(5) == []


def test_thinned_lines_keep_the_sums():
    history = history_of(begin(0), *(line(10 * i, a=STATS) for i in range(1, 24)))
    for num in (1, 4, 7, 100):
        thinned = history.thinned(num)
        assert len(thinned) <= num
        assert sum(event["steps"] for event in thinned) == 22 * 10
        found = sum(event["tables"]["a"]["found_rows"] for event in thinned)
        assert found == 22 * 6


def test_changes_are_since_the_last_time_and_sizes_of_now():
    before = {"rows": 5, "found_rows": 100, "evicted_rows": 3, "clipped_share": 0.5}
    now = {"rows": 7, "found_rows": 130, "evicted_rows": 3, "inserted_rows": 10}
    assert changes(now, before) == {
        "rows": 7,
        "found_rows": 30,
        "inserted_rows": 10,
        "hit_rate": 0.75,
    }
    # What TFRA's tables do not count, nobody knows.
    assert "hit_rate" not in changes({"rows": 7}, {})


def test_tiers_of_hybrid_tables():
    table = {"rows": 30, "hot_rows": 10, "demoted_rows": 4, "memory_bytes": 300}
    hbm, ram = tiers(table)
    assert hbm == {"tier": "hbm", "rows": 10, "evictions": 4}
    assert (ram["tier"], ram["rows"], ram["hit_rate"]) == ("ram", 20, None)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "", "0"),
        (999, "", "999"),
        (999.6, "", "1.00k"),
        (1234, "", "1.23k"),
        (12_345, "B", "12.3 kB"),
        (99_960, "", "100k"),
        (999_700, "", "1.00M"),
        (5.5e9, "B", "5.50 GB"),
        (None, "", "–"),
    ],
)
def test_short_numbers(value, unit, text):
    assert short(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.45, "450 ms"),
        (0.9996, "1.0 s"),
        (59.96, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3599.7, "1 h 00 min"),
        (12_000, "3 h 20 min"),
        (None, "–"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
