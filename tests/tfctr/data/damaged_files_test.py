"""Files that are not as they should be: each is named, or its bad part is counted."""

import codecs
import gzip
import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from helpers import log_files
from helpers.log_files import CRITEO_LINE, USER, whole
from tfctr import cli, training
from tfctr.data import (
    Avazu,
    Criteo,
    FeatureDeclaration,
    ParquetLog,
    TFRecordLog,
    TimeColumn,
    TimedLog,
    conversion,
)

ROOT = pathlib.Path(__file__).resolve().parents[3]


# Text.


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("name", ["avazu", "avazu.gz"])
def test_ends_of_lines_and_the_mark_of_utf8_change_nothing(
    tmp_path, name, mark, ending
):
    lines = [log_files.AVAZU_HEADER, *log_files.avazu_lines(200)]
    text = mark + ending.join(lines).encode()  # The last line has no end.
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    log = Avazu(path, [FeatureDeclaration("C14")], test=0)
    assert log.bad_lines == 0
    expected = [int(line.split(",")[16]) for line in lines[1:]]
    assert whole(log)[0]["C14"].numpy().tolist() == expected


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("line", "received"),
    [
        (CRITEO_LINE.replace("\t2", "\t\0", 1), r"'1\x00"),
        ("x" * 50_000, "'" + "x" * 100 + "...'."),  # Over several blocks.
        (CRITEO_LINE + "\t0a" * 20_000, "and has 20040. Received: '1"),
        (
            CRITEO_LINE.replace("\t2", '\t"2"', 1),
            "an integer or nothing in field 2, 'I1'.",
        ),
        (
            CRITEO_LINE.replace("\t", ","),
            "40 fields with tabs between them, and has 1.",
        ),
    ],
    ids=["NUL", "long", "many fields", "quotes", "commas"],
)
def test_strange_lines_are_named_or_counted(tmp_path, line, received):
    good = log_files.criteo_lines(100)
    path = log_files.write_lines(tmp_path / "day_0", [*good[:70], line, *good[70:]])
    with pytest.raises(ValueError) as raised:
        Criteo(path)
    message = str(raised.value).replace(r"1\t\x00", r"1\x00")
    assert f"{path}, line 71, must hold " in message
    assert received in message
    assert (
        "Correct the line, or leave such lines out with on_bad_line='skip'" in message
    )
    log = Criteo(path, test=0, on_bad_line="skip")
    assert (log.bad_lines, log.first_bad_line.number) == (1, 71)
    assert whole(log)[1].numpy().tolist() == [float(line[0]) for line in good]


@pytest.mark.usefixtures("small_blocks")
def test_bad_lines_anywhere_leave_the_others_as_they_are(tmp_path):
    chance = np.random.default_rng(0)
    good = log_files.criteo_lines(300)
    bad_before = sorted(chance.choice(300, 60).tolist())
    lines = list(good)
    for place in reversed(bad_before):
        lines.insert(place, "bad")
    path = log_files.write_lines(tmp_path / "day_0", lines)
    log = Criteo(path, test=0.2, on_bad_line="skip", shuffle_rows=100)
    assert log.bad_lines == 60
    rows = [line.split("\t") for line in good]
    expected = [[int(x, 16) if x else -1 for x in row[14:]] for row in rows[:240]]
    np.testing.assert_array_equal(whole(log)[0]["categories"], expected)
    shuffled = np.concatenate(
        [inputs["categories"] for inputs, _ in log.batches("train", 7, seed=1)]
    )
    assert sorted(shuffled.tolist()) == sorted(expected)


def test_a_stray_file_among_logs_is_named(tmp_path):
    log_files.write_lines(tmp_path / "day_0", [CRITEO_LINE])
    (tmp_path / "notes.md").write_text("The days of this log.\n")
    with pytest.raises(ValueError, match=r"notes.md, line 1, must hold 40 fields"):
        Criteo(tmp_path)


def test_empty_files_among_others_are_passed_over(tmp_path):
    (tmp_path / "day_0").write_bytes(b"")
    log_files.write_lines(tmp_path / "day_1", [CRITEO_LINE, CRITEO_LINE])
    assert Criteo(tmp_path, test=0).num_examples("train") == 2


# Parquet.


def test_parquet_columns_of_another_type_in_one_file_are_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    log_files.write_parquet(tmp_path / "a", log_files.rows(5))
    table = pa.table({"label": [0, 1], "user": ["x", "y"]})
    parquet.write_table(table, tmp_path / "b")
    message = f"{tmp_path}/b, column 'user', must hold integers.*Received: string."
    with pytest.raises(ValueError, match=message):
        ParquetLog(tmp_path, USER)


def test_nulls_are_what_stands_for_nothing(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"label": [0, 1], "user": [None, 2**62], "price": [None, 1.5]})
    parquet.write_table(table, tmp_path / "a")
    price = FeatureDeclaration("price", kind="dense", missing=7.0)
    inputs, _ = whole(ParquetLog(tmp_path, [*USER, price], test=0))
    assert inputs["user"].numpy().tolist() == [-1, 2**62]
    assert inputs["price"].numpy().tolist() == [7.0, 1.5]


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_what_is_no_whole_parquet_file_is_named(tmp_path, damage):
    pytest.importorskip("pyarrow")
    path = log_files.write_parquet(tmp_path / "a", log_files.rows(50))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"user,label\n" * 9)
    message = (
        f"{path} must be of a whole Parquet file. Received: .*\\. Write it again, or"
    )
    with pytest.raises(ValueError, match=message):
        ParquetLog(tmp_path, USER)
    with pytest.raises(ValueError, match=message):
        conversion.convert(path, tmp_path / "out", "parquet", "tfrecord")


def write_with_damaged_row_group(path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = list(range(100))
    table = pa.table({"label": [0, 1] * 50, "user": rows, "time": rows})
    parquet.write_table(table, path, row_group_size=50, use_dictionary=False)
    user = parquet.read_metadata(path).row_group(1).column(1)
    data = bytearray(path.read_bytes())
    start = user.data_page_offset
    data[start : start + user.total_compressed_size] = b"\xff" * (
        user.total_compressed_size
    )
    path.write_bytes(data)
    return path


def test_a_damaged_row_group_is_named(tmp_path, monkeypatch, capsys):
    path = write_with_damaged_row_group(tmp_path / "a")
    log = ParquetLog(path, USER, test=0)  # Which reads the labels only.
    message = f"{path}, row group 2, must be of a whole Parquet file. Received: "
    with pytest.raises(tf.errors.OpError, match=message):
        whole(log)
    # It is one line of the command too, without what TensorFlow adds.
    monkeypatch.setattr(training, "train", lambda config: whole(log))
    assert cli.main(["train", str(ROOT / "examples" / "synthetic.toml")]) == 2
    [line] = capsys.readouterr().err.strip().split("\n")
    assert line.startswith(f"tfctr: {message}")
    assert line.endswith("Write it again, or move it out of the directory.")


@pytest.mark.parametrize("target", ["parquet", "tfrecord"])
def test_a_damaged_row_group_is_not_converted(tmp_path, capsys, target):
    path = write_with_damaged_row_group(tmp_path / "a")
    out = tmp_path / "out"
    words = ["data", "convert", path, out, "--from", "parquet", "--to", target]
    assert cli.main([str(word) for word in words]) == 2
    [line] = capsys.readouterr().err.strip().split("\n")
    assert line.startswith(
        f"tfctr: {path}, row group 2, must be of a whole Parquet file. Received: "
    )
    assert list(out.iterdir()) == []


def test_a_damaged_row_group_is_named_in_the_order_of_time(tmp_path):
    path = write_with_damaged_row_group(tmp_path / "a")
    log = TimedLog(path, USER, TimeColumn("time"))
    message = f"{path} must be of a whole Parquet file. Received: .*\\. Write it again"
    with pytest.raises(ValueError, match=message):
        list(log.windows(3600))


def test_without_pyarrow_a_command_says_in_a_line_what_to_install(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.main(["data", "synthesize", str(tmp_path / "log")]) == 2
    assert capsys.readouterr().err == (
        "tfctr: Parquet files and `tfctr data` need pyarrow, which is not installed. "
        "Install it: pip install pyarrow.\n"
    )


# TFRecord.


def record_lengths(rows):
    return [16 + len(log_files.example_bytes(row)) for row in rows]


@pytest.mark.parametrize("where", ["length", "bytes"])
def test_a_record_with_a_wrong_checksum_is_named_and_ends_its_file(tmp_path, where):
    rows = [log_files.WHOLE, *log_files.rows(80)]
    path = log_files.write_records(tmp_path / "part", rows)
    data = bytearray(path.read_bytes())
    place = sum(record_lengths(rows[:60])) + (2 if where == "length" else 14)
    data[place] ^= 1
    path.write_bytes(data)
    message = f"{path}, record 61, must hold a whole record. Received: '.*corrupted"
    with pytest.raises(ValueError, match=message):
        TFRecordLog(path, USER)
    log = TFRecordLog(path, USER, test=0, on_bad_line="skip")
    assert (log.bad_lines, log.num_examples("train")) == (1, 60)
    assert log.first_bad_line.number == 61


def test_an_example_that_lacks_a_feature_has_what_stands_for_nothing(tmp_path):
    rows = [log_files.WHOLE, {"label": 1}, {"label": 0, "user": 3}]
    price = FeatureDeclaration("price", kind="dense", missing=7.0)
    items = FeatureDeclaration("items", kind="ids")
    path = log_files.write_records(tmp_path / "part", rows)
    inputs, labels = whole(TFRecordLog(path, [*USER, price, items], test=0))
    assert labels.numpy().tolist() == [1, 1, 0]
    assert inputs["user"].numpy().tolist() == [5, -1, 3]
    assert inputs["price"].numpy().tolist() == [2.0, 7.0, 7.0]
    assert inputs["items"].to_list() == [[4], [], []]


@pytest.mark.parametrize("user", ["five", [5, 6]], ids=["text", "two values"])
def test_an_example_with_a_feature_of_another_kind_is_named(tmp_path, user):
    rows = [log_files.WHOLE, {"label": 1, "user": user}]
    path = log_files.write_records(tmp_path / "part", rows)
    message = f"{path}, record 2, must hold a `tf.train.Example` whose features are of"
    with pytest.raises(ValueError, match=message):
        TFRecordLog(path, USER)
    log = TFRecordLog(path, USER, test=0, on_bad_line="skip")
    assert (log.bad_lines, log.num_examples("train")) == (1, 1)


def test_compressed_records_are_refused(tmp_path):
    path = log_files.write_records(tmp_path / "part", [log_files.WHOLE])
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ValueError, match=re.escape(f"Unpack it: gunzip '{path}'.")):
        TFRecordLog(path, USER)
