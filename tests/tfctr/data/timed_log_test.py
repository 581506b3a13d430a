"""`TimedLog`: windows of time hold every row, and what is wrong is named."""

import collections
import re

import numpy as np
import pyarrow as pa
import pytest

from helpers import timed_logs
from tfctr.data import FeatureDeclaration, NegativeSampling, TimeColumn, TimedLog


@pytest.mark.parametrize(("files", "group"), [(1, 1000), (1, 7), (3, 50), (2, 1)])
def test_windows_hold_every_row_once_and_in_order(write_log, files, group):
    columns = timed_logs.draw_log(90 if group == 1 else 600)
    features = [FeatureDeclaration("row")]
    log = timed_logs.open_log(
        write_log(columns, files, group), item="", features=features
    )
    windows = list(log.windows(1800))
    rows = [timed_logs.examples_of(window.log, "row") for window in windows]
    assert np.concatenate(rows).tolist() == columns["row"].tolist()
    # The oracle: rows by the number of their half hour.
    expected = collections.defaultdict(list)
    for time, row in zip(columns["time"].tolist(), columns["row"], strict=True):
        expected[time // 1800].append(row)
    assert [part.tolist() for part in rows] == list(expected.values())
    assert [window.start for window in windows] == [
        number * 1800 * timed_logs.SECOND for number in expected
    ]
    assert [window.num_rows for window in windows] == list(map(len, rows))
    labels = np.concatenate([window.labels for window in windows])
    assert labels.tolist() == columns["label"].tolist()


def test_a_window_without_rows_is_left_out(write_log):
    columns = {"time": [0, 10, 7200], "ad": [1, 2, 1], "user": [1, 1, 1]}
    log = timed_logs.open_log(write_log({**columns, "label": [0, 1, 1]}))
    assert [window.start // timed_logs.SECOND for window in log.windows(3600)] == [
        0,
        7200,
    ]


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        (pa.timestamp("ms"), "s"),  # Its own unit stands.
        (pa.timestamp("us", "UTC"), "s"),
        (pa.int64(), "ms"),
        (pa.int32(), "ms"),
    ],
)
def test_times_have_units(write_log, kind, unit):
    scale = 1000 if getattr(kind, "unit", "ms") == "ms" else 10**6
    times = pa.array([scale * 3, scale * 3 + scale // 2, scale * 7], pa.int64())
    columns = {"time": times.cast(kind), "ad": [1, 2, 1], "user": [1, 1, 1]}
    log = timed_logs.open_log(write_log({**columns, "label": [0, 1, 1]}), unit=unit)
    windows = list(log.windows(2.0))
    assert [window.start for window in windows] == [
        2 * timed_logs.SECOND,
        6 * timed_logs.SECOND,
    ]
    assert windows[0].times.tolist() == [
        3 * timed_logs.SECOND,
        3 * timed_logs.SECOND + timed_logs.SECOND // 2,
    ]


def test_lists_strings_and_dense_columns_pass_through(write_log):
    columns = {
        "time": [0, 1, 2, 3],
        "ad": ["a", "b", "a", "c"],
        "tags": [[1, 2], [], [3], [4, 5]],
        "price": [0.5, 1.0, 2.0, 4.0],
    }
    features = [
        FeatureDeclaration("ad", kind="string"),
        FeatureDeclaration("tags", kind="ids"),
        FeatureDeclaration("price", kind="dense"),
    ]
    log = timed_logs.open_log(
        write_log(columns), negatives=NegativeSampling(1), features=features
    )
    (window,) = log.windows(3600)
    ((inputs, labels),) = window.log.batches("train", 64)
    # The first click has an empty pool; each other has a non-click behind it.
    assert labels.numpy().tolist() == [1, 1, 0, 1, 0, 1, 0]
    assert inputs["price"].numpy().tolist() == [0.5, 1, 1, 2, 2, 4, 4]
    tags = [[1, 2], [], [], [3], [3], [4, 5], [4, 5]]
    assert inputs["tags"].to_list() == tags
    items = inputs["ad"].numpy().tolist()
    assert items[::2] == [b"a", b"a", *items[4::2]]
    assert items[5] == b"c" and set(items[4:7:2]) <= {b"a", b"b"}
    # Only the third click is of an item that was in its pool.
    assert timed_logs.examples_of(window.tested, "price").tolist() == [2, 2]
    assert window.log.vocabulary("tags").tolist() == [1, 2, 3, 4, 5]


def test_rows_that_lie_before_others_are_named(write_log):
    columns = timed_logs.draw_log(120)
    columns["time"][70] = columns["time"][69] - 3
    log = timed_logs.open_log(write_log(columns, group=50))
    with pytest.raises(ValueError, match=r"0\.parquet, row 71, must not lie before"):
        list(log.windows(3600))
    # The first row of a group is compared with the last of the group before.
    columns = timed_logs.draw_log(120)
    columns["time"][60:] -= 7200
    log = timed_logs.open_log(write_log(columns, files=2))
    with pytest.raises(ValueError, match=r"1\.parquet, row 1, .*Sort the rows"):
        list(log.windows(3600))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": None}, "must have a column 'time', of the time"),
        ({"time": [0.5, 1.0]}, "must hold the time: integers or timestamps"),
        ({"time": [0, None]}, "row 2, must have a time in column 'time'"),
        ({"time": [0, 2**62]}, "row 2, must have a time in 's' since 1970"),
        ({"label": None}, "must have a column 'label'"),
        ({"label": ["0", "1"]}, "must hold the labels, 1 for a click and 0 for none"),
        ({"label": [1, 2]}, "row 2, must hold a label of 0 or 1"),
        ({"ad": None}, "must have a column 'ad', of feature 'item'"),
        ({"ad": [[1], [2]]}, "must hold integers"),
    ],
)
def test_wrong_columns_are_named(write_log, change, message):
    columns = {"time": [0, 1], "ad": [1, 2], "user": [1, 1], "label": [0, 1]} | change
    given = {name: values for name, values in columns.items() if values is not None}
    with pytest.raises(ValueError, match=re.escape(message)):
        list(timed_logs.open_log(write_log(given)).windows(3600))


def test_rows_with_a_bad_label_can_be_left_out(write_log, caplog):
    columns = timed_logs.draw_log(40)
    labels = columns["label"].astype(np.float64)
    # A whole row group, and single rows.
    labels[10:20], labels[25], labels[39] = 2.0, 0.5, np.nan
    path = write_log({**columns, "label": labels}, group=10)
    features = [FeatureDeclaration("row")]
    message = r"0\.parquet, row 11, must hold .* Received: '2\.0'.*on_bad_line='skip'"
    with pytest.raises(ValueError, match=message):
        list(TimedLog(path, features, TimeColumn("time")).windows(3600))
    log = TimedLog(path, features, TimeColumn("time"), on_bad_line="skip")
    good = np.flatnonzero((labels == 0) | (labels == 1))
    for _ in range(2):  # Each time they are counted anew.
        windows = list(log.windows(3600))
        rows = np.concatenate(
            [timed_logs.examples_of(window.log, "row") for window in windows]
        )
        assert rows.tolist() == good.tolist()
        found = np.concatenate([window.labels for window in windows])
        assert found.tolist() == labels[good].tolist()
        assert (log.bad_lines, log.first_bad_line.number) == (12, 11)
    assert "Left out 12 bad rows. The first: " in caplog.text
    # Rows that lie before others are not left out.
    times = columns["time"].copy()
    times[12] = 0
    path = write_log({**columns, "label": labels, "time": times})
    log = TimedLog(path, features, TimeColumn("time"), on_bad_line="skip")
    with pytest.raises(ValueError, match="row 13, must not lie before"):
        list(log.windows(3600))
    path = write_log({**columns, "label": np.full(40, 7)})
    log = TimedLog(path, features, TimeColumn("time"), on_bad_line="skip")
    with pytest.raises(ValueError, match="Received: none. Left out so far: 40, the"):
        list(log.windows(3600))


@pytest.mark.parametrize("seconds", [0, -1.0, 1e-12])
def test_a_window_has_a_length(write_log, seconds):
    log = timed_logs.open_log(write_log(timed_logs.draw_log(10)))
    with pytest.raises(ValueError, match="`seconds` must be a positive number"):
        list(log.windows(seconds))


def test_arguments_of_the_log_are_checked(write_log):
    path = write_log(timed_logs.draw_log(10))
    with pytest.raises(ValueError, match="`item`.* must be the column of a feature"):
        timed_logs.open_log(path, item="", negatives=NegativeSampling(2))
    with pytest.raises(ValueError, match="`item`.* must be the column of a feature"):
        timed_logs.open_log(path, item="row")
    with pytest.raises(ValueError, match="which column tells the time"):
        TimeColumn("")
    with pytest.raises(ValueError, match="must be one of 's', 'ms', 'us', 'ns'"):
        TimeColumn("time", "h")
    empty = {name: values[:0] for name, values in timed_logs.draw_log(10).items()}
    with pytest.raises(ValueError, match="must hold at least one row"):
        timed_logs.open_log(write_log(empty))
    with pytest.raises(ValueError, match="`num` must be a positive integer"):
        NegativeSampling(0)
    with pytest.raises(ValueError, match="`pool_seconds` must be a positive number"):
        NegativeSampling(1, pool_seconds=0.0)
