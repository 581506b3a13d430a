import re

import numpy as np
import pytest

from tfctr.bench.trace import Trace, movielens_trace, workload_trace
from tfctr.bench.workload import Workload


def test_rows_are_numbered_without_gaps_and_batches_stay_the_same_sets():
    batches = [np.array([7, 900]), np.array([7, 8]), np.array([8, 10**12])]
    trace = Trace.with_scan("small", batches, scan_rows=0)
    assert [batch.tolist() for batch in trace.batches] == [[0, 2], [0, 1], [1, 3]]
    assert trace.num_rows == 4
    assert trace.batches[0].dtype == np.int32


def test_the_scan_comes_after_nine_tenths_and_holds_each_row_once():
    batches = [np.arange(start, start + 10) for start in range(0, 200, 10)]
    trace = Trace.with_scan("small", batches, scan_rows=25)
    assert (trace.scan_start, trace.scan_end) == (18, 21)
    scan = trace.batches[18:21]
    assert [batch.size for batch in scan] == [10, 10, 5]
    np.testing.assert_array_equal(np.concatenate(scan), np.arange(200, 225))
    assert trace.batches[21].tolist() == list(range(180, 190))
    assert trace.num_rows == 200


def test_without_a_number_the_scan_has_a_tenth_of_the_rows():
    batches = [np.arange(start, start + 10) for start in range(0, 200, 10)]
    trace = Trace.with_scan("small", batches)
    assert sum(b.size for b in trace.batches[trace.scan_start : trace.scan_end]) == 20


def test_batches_of_a_workload_are_drawn_anew():
    workload = Workload(num_fields=2, rows_per_field=1000, batch_size=50)
    trace = workload_trace(workload, num_batches=20)
    sets = [frozenset(batch.tolist()) for batch in trace.batches]
    assert len(set(sets)) == len(sets)
    assert all(np.all(np.diff(batch) > 0) for batch in trace.batches)
    again = workload_trace(workload, num_batches=20)
    for batch, same in zip(trace.batches, again.batches, strict=True):
        np.testing.assert_array_equal(batch, same)


def test_movielens_is_replayed_in_order_of_time(tmp_path):
    # User 1 and movie 1 are two rows.
    lines = ["1::1::5::30", "2::7::3::10", "1::7::4::20", "2::1::1::40"]
    (tmp_path / "ratings.dat").write_text("\n".join(lines) + "\n")
    trace = movielens_trace(tmp_path, batch_size=2)
    # By key: user 1, movie 1, user 2, movie 7.
    assert trace.num_rows == 4
    plain = [*trace.batches[: trace.scan_start], *trace.batches[trace.scan_end :]]
    assert [batch.tolist() for batch in plain] == [[0, 2, 3], [0, 1, 2]]


def test_a_directory_without_ratings_is_refused(tmp_path):
    message = (
        "--data must name the directory of MovieLens 1M, with its ratings.dat. "
        f"Received: --data {tmp_path}. Download ml-1m.zip"
    )
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        movielens_trace(tmp_path, batch_size=2)
