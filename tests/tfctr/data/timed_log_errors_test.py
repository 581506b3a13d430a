"""What a log in the order of time refuses: times, spans and draws out of range."""

import re

import numpy as np
import pytest

from tfctr.data import FeatureDeclaration, NegativeSampling, TimeColumn, TimedLog

pa = pytest.importorskip("pyarrow")
YEAR = 365.25 * 86_400


@pytest.fixture
def open_log(tmp_path):
    """Opens a log of some times."""

    def open_log(times, unit="s"):
        from pyarrow import parquet

        ones = [1] * len(times)
        path = tmp_path / "clicks.parquet"
        parquet.write_table(pa.table({"time": times, "ad": ones, "label": ones}), path)
        return TimedLog(path, [FeatureDeclaration("ad")], TimeColumn("time", unit))

    return open_log


@pytest.mark.parametrize(
    ("kind", "unit", "time"),
    [
        ("int64", "s", -(2**63)),  # What NumPy takes for no time at all.
        ("int64", "ns", -(2**63)),
        ("int64", "s", -(2**33)),
        ("int64", "s", 2**62),
        ("uint64", "s", 2**63),
        ("uint64", "ns", 2**64 - 1),
        ("int32", "s", None),
    ],
)
def test_times_out_of_range_are_named(open_log, kind, unit, time):
    log = open_log(pa.array([0, time, 0], kind), unit)
    with pytest.raises(ValueError) as raised:
        list(log.windows(3600))
    message = str(raised.value)
    if time is None:
        assert "row 2, must have a time in column 'time'. Received: none." in message
        return
    assert f"clicks.parquet, row 2, must have a time in '{unit}' since 1970" in message
    assert f"Received: {time}. Correct progressive.time_unit." in message


def test_timestamps_out_of_range_are_named(open_log):
    log = open_log(pa.array([0, 2**62], pa.timestamp("ms")), "s")
    with pytest.raises(ValueError, match=f"time in 'ms' since 1970.*: {2**62}\\."):
        list(log.windows(3600))


@pytest.mark.parametrize("seconds", [1.0, 3600, 146 * YEAR])
@pytest.mark.parametrize("time", [-(2**62), -1, 0, 2**63 - 1])
@pytest.mark.parametrize("kind", ["int64", "timestamp"])
def test_the_first_and_last_times_have_windows(open_log, kind, time, seconds):
    kind = pa.timestamp("ns") if kind == "timestamp" else pa.int64()
    (window,) = open_log(pa.array([time], kind), "ns").windows(seconds)
    span = round(seconds * 10**9)
    assert window.start == time // span * span  # By Python's integers.
    assert window.times.tolist() == [time]


@pytest.mark.parametrize(
    "seconds", [0, -1.0, 1e-12, np.nan, np.inf, -np.inf, 1e12, 1e300], ids=str
)
def test_a_span_is_a_length_of_time(open_log, seconds):
    message = (
        "must be a positive number of seconds, of 146 years at most. Received: {}="
        f"{seconds!r}. An hour is 3600, a day 86400."
    )
    with pytest.raises(ValueError, match=re.escape(message.format("seconds"))):
        list(open_log([0]).windows(seconds))
    with pytest.raises(ValueError, match=re.escape(message.format("pool_seconds"))):
        NegativeSampling(1, pool_seconds=seconds)


@pytest.mark.parametrize("num", [0, -1, True, 1.5, "4"])
def test_the_number_of_negatives_is_a_positive_integer(num):
    message = f"`num` must be a positive integer. Received: num={num!r}. A usual"
    with pytest.raises(ValueError, match=re.escape(message)):
        NegativeSampling(num)


@pytest.mark.parametrize("seed", [-1, True, 0.5, None])
def test_the_seed_of_negatives_is_an_integer(seed):
    message = f"`seed` must be an integer of 0 or more. Received: seed={seed!r}. Use 1"
    with pytest.raises(ValueError, match=re.escape(message)):
        NegativeSampling(1, seed=seed)
    assert NegativeSampling(1, seed=0).seed == 0
