"""Files that no reader takes, and arguments that no reader takes."""

import pathlib
import re
import sys

import pytest
import tensorflow as tf

from helpers import log_files
from helpers.log_files import CRITEO_LINE, USER
from tfctr.data import Avazu, Criteo, FeatureDeclaration, ParquetLog, TFRecordLog


@pytest.mark.parametrize("kind", ["criteo", "avazu", "parquet", "tfrecord"])
def test_empty_files_and_no_files_are_refused(tmp_path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    reader = {
        "criteo": Criteo,
        "avazu": Avazu,
        "parquet": lambda path: ParquetLog(path, USER),
        "tfrecord": lambda path: TFRecordLog(path, USER),
    }[kind]
    with pytest.raises(FileNotFoundError, match="which does not exist. Correct"):
        reader(tmp_path / "none")
    (tmp_path / "_SUCCESS").write_text("")
    with pytest.raises(FileNotFoundError, match="which holds no file. Correct"):
        reader(tmp_path)
    (tmp_path / "part").write_bytes(b"")
    expected = {
        "criteo": "at least one good line of Criteo's TSV. Received: none. Check",
        "avazu": "at least one good line of Avazu's CSV. Received: none. Check",
        "parquet": "must be of a whole Parquet file",
        "tfrecord": "at least one good record. Received: none. Check",
    }[kind]
    with pytest.raises(ValueError, match=expected):
        reader(tmp_path)


def test_the_bad_lines_of_other_files_are_not_said_to_be_of_this(tmp_path):
    train = log_files.write_lines(tmp_path / "train", ["bad", *[CRITEO_LINE] * 9])
    test = log_files.write_lines(tmp_path / "test", [])
    message = (
        "test' must hold at least one good line of Criteo's TSV. Received: none. Left "
        "out so far: 1, the first: .*train, line 1, must hold"
    )
    with pytest.raises(ValueError, match=message):
        Criteo(train, test=test, on_bad_line="skip")


def test_a_directory_without_permission_is_refused(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "iterdir", refuse)
    with pytest.raises(PermissionError, match="must be readable. Received: no perm"):
        Criteo(tmp_path)


def test_a_file_without_permission_is_refused(tmp_path, monkeypatch):
    path = log_files.write_lines(tmp_path / "day_0", [CRITEO_LINE])
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="day_0' must be readable"):
        Criteo(path)


@pytest.mark.parametrize("twice", ["label", "user"])
def test_two_columns_of_one_name_are_refused(tmp_path, twice):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = ["label", "user", twice]
    table = pa.Table.from_arrays([pa.array([0, 1])] * 3, names=names)
    parquet.write_table(table, tmp_path / "a.parquet")
    message = f"must have one column '{twice}'.* with 2 columns of that name"
    with pytest.raises(ValueError, match=message):
        ParquetLog(tmp_path, USER)


def test_parquet_with_a_missing_or_wrong_column_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    log_files.write_parquet(tmp_path / "part", log_files.rows(5))
    for features, message in [
        ([FeatureDeclaration("clicks")], "must have a column 'clicks', of feature"),
        (
            [FeatureDeclaration("city")],
            "column 'city', must hold integers for a feature of kind 'id'. Received: "
            "string.",
        ),
        (
            [FeatureDeclaration("items", kind="strings")],
            "must hold lists of strings for a feature of kind 'strings'. Received: "
            "list<element: int64>.",
        ),
        ([FeatureDeclaration("items")], "must hold integers for a feature of kind"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            ParquetLog(tmp_path, features)
    with pytest.raises(ValueError, match="must have a column 'click', of the label"):
        ParquetLog(tmp_path, USER, label="click")
    message = "column 'city', must hold the labels, 1 for a click and 0 for none, or "
    with pytest.raises(ValueError, match=f"{message}booleans. Received: string. Name"):
        ParquetLog(tmp_path, USER, label="city")
    with pytest.raises(ValueError, match="must hold the labels, .* Received: list"):
        ParquetLog(tmp_path, USER, label="items")


def test_tfrecord_labels_that_are_texts_are_refused(tmp_path):
    log_files.write_records(tmp_path / "part", log_files.rows(5))
    message = "part.*, column 'city', must hold the labels, .* Received: bytes_list."
    with pytest.raises(ValueError, match=message):
        TFRecordLog(tmp_path, USER, label="city")


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"Install it: pip install pyarrow"):
        ParquetLog(tmp_path, USER)


def test_records_without_a_column_are_refused(tmp_path):
    path = log_files.write_records(tmp_path / "part", [log_files.WHOLE])
    with pytest.raises(ValueError, match="must have a column 'age'. Received: 1 first"):
        TFRecordLog(path, [FeatureDeclaration("age")])


@pytest.mark.parametrize("name", ["day_0", "day_0.gz"])
@pytest.mark.parametrize("change", ["emptied", "cut", "damaged"])
def test_a_file_that_changed_is_refused(tmp_path, name, change):
    path = log_files.write_lines(tmp_path / name, log_files.criteo_lines(20))
    log = Criteo(path, test=0)
    content = path.read_bytes()
    half = len(content) // 2
    inverted = bytes(255 - byte for byte in content[half:])
    changed = {
        "emptied": b"",
        "cut": content[:half],
        "damaged": content[:half] + inverted,
    }
    path.write_bytes(changed[change])
    with pytest.raises(tf.errors.OpError, match="must stay as it was when the log"):
        log_files.whole(log)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"test": 1.0}, "Received: test=1.0. A usual share is 0.1."),
        ({"on_bad_line": "x"}, "Received: on_bad_line='x'."),
        ({"shuffle_rows": 0}, "Received: shuffle_rows=0. A usual value is 262144."),
        (
            {"features": [FeatureDeclaration("a", column="C27")]},
            "Received: 'C27' for feature 'a'. Correct its `column`.",
        ),
        (
            {"features": [FeatureDeclaration("C1", kind="string")]},
            "Received: kind='string' for feature 'C1'.",
        ),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, message):
    path = log_files.write_lines(tmp_path / "day_0", [CRITEO_LINE])
    with pytest.raises(ValueError, match=re.escape(message)):
        Criteo(path, **arguments)
