"""Lines, rows and records that cannot be read: named, or left out and counted."""

import logging
import re

import numpy as np
import pytest

from helpers import log_files
from helpers.log_files import CRITEO_LINE, USER
from tfctr.data import Criteo, ParquetLog, TFRecordLog


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            CRITEO_LINE.removesuffix("\t0a").encode(),
            "40 fields with tabs between them, and has 39. Received: '1\\t2\\t2",
        ),
        (
            b"2" + CRITEO_LINE[1:].encode(),
            "a label, 0 or 1, in field 1, 'label'. Received: '2\\t2",
        ),
        (b"", "40 fields with tabs between them, and has 1. Received: ''."),
        (
            CRITEO_LINE.replace("\t2\t0a", "\tx\t0a").encode(),
            "an integer or nothing in field 14, 'I13'. Received: '1\\t2",
        ),
        (
            CRITEO_LINE.encode().replace(b"\t0a", b"\t\xff\xfe", 1),
            "at most 16 hexadecimal digits, or nothing, in field 15, 'C1'. Received: ",
        ),
        (CRITEO_LINE.encode() + b"\t", "40 fields with tabs between them, and has 41."),
    ],
)
def test_a_bad_line_is_named_or_counted(tmp_path, caplog, line, expected):
    path = tmp_path / "train.txt"
    good = [line.encode() for line in log_files.criteo_lines(100)]
    path.write_bytes(b"\n".join([*good[:70], line, *good[70:], line]) + b"\n")
    message = f"{path}, line 71, must hold {expected}"
    with pytest.raises(ValueError, match=re.escape(message)):
        Criteo(path)
    with caplog.at_level(logging.WARNING, "tfctr"):
        log = Criteo(path, on_bad_line="skip", test=0)
    assert log.bad_lines == 2
    assert log.first_bad_line.number == 71
    assert f"Left out 2 bad lines. The first: {message}" in caplog.text
    lines = [line.decode() for line in good]
    assert log_files.whole(log)[1].numpy().tolist() == log_files.criteo_oracle(lines)[0]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_gzip_file_gives_what_came_whole(tmp_path, damage):
    lines = log_files.criteo_lines()
    path = log_files.write_lines(tmp_path / "day_0.gz", lines)
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    path.write_bytes(data)
    # Damaged bytes may come out as lines before the damage is noticed.
    found = r"must hold the rest of a whole gzip file \(the file ends amid"
    found = found if damage == "truncated" else "day_0.gz, line [0-9]+, must hold"
    with pytest.raises(ValueError, match=found):
        Criteo(path)
    log = Criteo(path, on_bad_line="skip", test=0)
    assert log.bad_lines >= 1
    count = log.num_examples("train")
    assert 50 < count < 350
    if damage == "truncated":
        assert log.bad_lines == 1 and log.first_bad_line.number == count + 1
        expected = log_files.criteo_oracle(lines[:count])
        inputs, labels = log_files.whole(log)
        assert labels.numpy().tolist() == expected[0]
        np.testing.assert_array_equal(inputs["categories"], expected[2])


@pytest.mark.parametrize(
    ("label", "shown"), [(2, "2"), (None, "None")], ids=["two", "none"]
)
@pytest.mark.parametrize("kind", ["parquet", "tfrecord"])
def test_a_bad_label_is_named_or_counted(tmp_path, kind, label, shown):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    some = [log_files.WHOLE, *log_files.rows(80)]
    some[60] = {**some[60], "label": label}
    write, reader, unit = {
        "parquet": (log_files.write_parquet, ParquetLog, "row"),
        "tfrecord": (log_files.write_records, TFRecordLog, "record"),
    }[kind]
    path = write(tmp_path / "part", some)
    with pytest.raises(ValueError) as raised:
        reader(path, USER)
    assert f"{path}, {unit} 61, must hold a label of 0 or 1." in str(raised.value)
    log = reader(path, USER, on_bad_line="skip", test=0)
    assert log.bad_lines == 1 and log.num_examples("train") == 80
    del some[60]
    users = [-1 if row["user"] is None else row["user"] for row in some]
    assert log_files.whole(log)[0]["user"].numpy().tolist() == users


def test_records_that_are_no_examples_are_named_or_counted(tmp_path):
    some = [log_files.WHOLE, b"\xff\xff nonsense", *log_files.rows(5)]
    path = log_files.write_records(tmp_path / "part", some)
    with pytest.raises(ValueError, match="record 2, must hold a `tf.train.Example`"):
        TFRecordLog(path, USER)
    log = TFRecordLog(path, USER, on_bad_line="skip", test=0)
    assert (log.bad_lines, log.num_examples("train")) == (1, 6)


@pytest.mark.usefixtures("small_blocks")
def test_a_truncated_file_of_records_gives_what_came_whole(tmp_path):
    some = [log_files.WHOLE, *log_files.rows(120)]
    path = log_files.write_records(tmp_path / "part", some)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="record 121, must hold a whole record"):
        TFRecordLog(path, USER)
    log = TFRecordLog(path, USER, on_bad_line="skip", test=0)
    assert (log.bad_lines, log.num_examples("train")) == (1, 120)


@pytest.mark.parametrize("num_bytes", [1, 11])
def test_a_beginning_of_a_record_is_named_or_counted(tmp_path, num_bytes):
    path = log_files.write_records(tmp_path / "part", log_files.rows(5))
    records = path.read_bytes()
    path.write_bytes(records + records[:num_bytes])
    message = (
        f"record 6, must hold a whole record. Received: '{num_bytes} bytes behind the "
        "last whole record'."
    )
    with pytest.raises(ValueError, match=message):
        TFRecordLog(path, USER)
    log = TFRecordLog(path, USER, on_bad_line="skip", test=0)
    assert (log.bad_lines, log.num_examples("train")) == (1, 5)
