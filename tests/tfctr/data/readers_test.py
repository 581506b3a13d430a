"""The logs that lie in files: against plain Python, and damaged in every way."""

import gzip
import logging
import math
import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfctr.data import (
    Avazu,
    Criteo,
    FeatureDeclaration,
    ParquetLog,
    Position,
    TFRecordLog,
)
from tfctr.distributed.dataset import _shard

log_files = sys.modules["log_files"]
DECLARED = log_files.DECLARED
USER = [FeatureDeclaration("user")]


def whole(log, split="train", **options):
    """Returns all examples of a split, as one batch."""
    (batch,) = log.batches(split, log.num_examples(split), **options)
    return batch


def listed(value):
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy()


def criteo_oracle(lines):
    fields = [line.split("\t") for line in lines]
    numbers = [[math.log1p(max(int(x or 0), 0)) for x in some[1:14]] for some in fields]
    ids = [[int(x, 16) if x else -1 for x in some[14:]] for some in fields]
    return [float(some[0]) for some in fields], numbers, ids


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_criteo_is_what_python_reads(tmp_path, name):
    lines = log_files.criteo_lines()
    path = log_files.write_lines(tmp_path / name, lines, "\r\n")
    log = Criteo(path, test=0.25)
    assert len(log._blocks) > 5
    for split, some in (("train", lines[:300]), ("test", lines[300:])):
        inputs, labels = whole(log, split)
        expected_labels, numbers, ids = criteo_oracle(some)
        assert labels.numpy().tolist() == expected_labels
        np.testing.assert_allclose(inputs["numbers"], numbers, rtol=1e-6)
        np.testing.assert_array_equal(inputs["categories"], ids)


def test_avazu_is_what_python_reads(open_small_log):
    log = open_small_log("avazu")
    fields = [line.split(",") for line in log_files.avazu_lines()[:360]]
    inputs, labels = whole(log)
    assert labels.numpy().tolist() == [float(some[1]) for some in fields]
    expected = [
        [int(x, 16 if 2 <= place <= 10 else 10) for place, x in enumerate(some[3:])]
        for some in fields
    ]
    np.testing.assert_array_equal(inputs["categories"], expected)
    assert log.bad_lines == 0  # The names of the columns are no bad line.


@pytest.mark.parametrize("kind", ["parquet", "tfrecord"])
def test_declared_features_are_what_python_makes_of_the_rows(open_small_log, kind):
    some = [log_files.WHOLE, *log_files.rows(399)][:360]
    inputs, labels = whole(open_small_log(kind))
    prices = [row["price"] for row in some]

    def or_else(name, default):
        return [default if row[name] is None else row[name] for row in some]

    def texts(values):
        return [text.encode() for text in values]

    assert labels.numpy().tolist() == [row["label"] for row in some]
    expected = {
        "user": or_else("user", -1),
        "bucket": [-1 if x is None else sum(x >= b for b in (1, 5, 9)) for x in prices],
        "pair": [[row["left"], row["right"]] for row in some],
        "city": texts(or_else("city", "")),
        "items": or_else("items", []),
        "words": list(map(texts, or_else("words", []))),
    }
    for name, values in expected.items():
        assert np.asarray(listed(inputs[name]), object).tolist() == values, name
    logs = [-0.5 if x is None else math.log1p(max(x, 0)) for x in prices]
    np.testing.assert_allclose(inputs["price"], logs, rtol=1e-6)


@pytest.mark.parametrize("kind", ["criteo", "avazu", "parquet", "tfrecord"])
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_killed_run_goes_on_and_every_row_comes_once(open_small_log, kind, ranks):
    log = open_small_log(kind)

    def run(position=Position()):  # noqa: B008 (frozen)
        """What the ranks deliver, one after another in each step."""
        batches = log.batches("train", 32, seed=7, position=position, epochs=2)
        shards = [_shard(batches, rank, ranks, False) for rank in range(ranks)]
        steps = []
        for parts in zip(*shards, strict=True):
            rows = []
            for inputs, labels, *weights in parts:
                columns = [map(repr, list(listed(x))) for x in inputs.values()]
                keep = weights[0].numpy() if weights else np.ones(len(labels))
                for row, counts in zip(zip(*columns, strict=True), keep, strict=True):
                    if counts > 0:
                        rows.append(row)
            steps.append(rows)
        return steps

    steps = log.steps_per_epoch("train", 32)
    all_steps = run()
    epochs = [
        [row for step in part for row in step]
        for part in (all_steps[:steps], all_steps[steps:])
    ]
    assert len(epochs[0]) == len(epochs[1]) == 360
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    position = Position.from_dict(Position().advanced(steps + 5, steps).to_dict())
    assert run(position) == all_steps[steps + 5 :]


def test_files_of_their_own_make_the_test_split(tmp_path):
    lines = log_files.criteo_lines(30)
    train = log_files.write_lines(tmp_path / "train", lines[:20])
    test = log_files.write_lines(tmp_path / "test", lines[20:])
    log = Criteo(train, test=test)
    assert log.num_examples("train") == 20
    _, labels = whole(log, "test")
    assert labels.numpy().tolist() == criteo_oracle(lines[20:])[0]


def test_columns_of_criteo_can_be_chosen(tmp_path):
    lines = log_files.criteo_lines(10)
    path = log_files.write_lines(tmp_path / "train", lines)
    features = [
        FeatureDeclaration("count", column="I3", kind="dense"),
        FeatureDeclaration("ids", columns=("C2", "C1")),
        FeatureDeclaration("id", column="I1"),
    ]
    inputs, _ = whole(Criteo(path, features, test=0))
    fields = [line.split("\t") for line in lines]
    assert inputs["count"].numpy().tolist() == [float(some[3]) for some in fields]
    assert inputs["id"].numpy().tolist() == [int(some[1] or -1) for some in fields]
    categories = criteo_oracle(lines)[2]
    assert inputs["ids"].numpy().tolist() == [[b, a] for a, b, *_ in categories]


# Bad lines.

GOOD = "\t".join(["1", *["2"] * 13, *["0a"] * 26])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            GOOD.removesuffix("\t0a").encode(),
            "40 fields with tabs between them, and has 39. Received: '1\\t2\\t2",
        ),
        (
            b"2" + GOOD[1:].encode(),
            "a label, 0 or 1, in field 1, 'label'. Received: '2\\t2",
        ),
        (b"", "40 fields with tabs between them, and has 1. Received: ''."),
        (
            GOOD.replace("\t2\t0a", "\tx\t0a").encode(),
            "an integer or nothing in field 14, 'I13'. Received: '1\\t2",
        ),
        (
            GOOD.encode().replace(b"\t0a", b"\t\xff\xfe", 1),
            "at most 16 hexadecimal digits, or nothing, in field 15, 'C1'. Received: ",
        ),
        (GOOD.encode() + b"\t", "40 fields with tabs between them, and has 41."),
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
    assert whole(log)[1].numpy().tolist() == criteo_oracle(lines)[0]


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
        expected = criteo_oracle(lines[:count])
        inputs, labels = whole(log)
        assert labels.numpy().tolist() == expected[0]
        np.testing.assert_array_equal(inputs["categories"], expected[2])


@pytest.mark.usefixtures("small_blocks")
def test_gzip_files_may_hold_several_streams(tmp_path):
    lines = log_files.criteo_lines(200)
    parts = ["\n".join(lines[:90]) + "\n" + lines[90][:30], lines[90][30:] + "\n"]
    parts += ["\n".join(lines[91:])]
    path = tmp_path / "train.gz"
    path.write_bytes(b"".join(gzip.compress(part.encode()) for part in parts))
    log = Criteo(path, test=0)
    np.testing.assert_array_equal(whole(log)[0]["categories"], criteo_oracle(lines)[2])


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
    assert whole(log)[0]["user"].numpy().tolist() == users


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


# Files that cannot be read at all.


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
    expected = (
        "must be of a whole Parquet file" if kind == "parquet" else "at least one"
    )
    with pytest.raises(ValueError, match=expected):
        reader(tmp_path)


def test_a_directory_without_permission_is_refused(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "iterdir", refuse)
    with pytest.raises(PermissionError, match="must be readable. Received: no perm"):
        Criteo(tmp_path)


def test_a_file_without_permission_is_refused(tmp_path, monkeypatch):
    path = log_files.write_lines(tmp_path / "day_0", [GOOD])
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="day_0' must be readable"):
        Criteo(path)


def test_empty_numbers_of_parquet_are_the_missing_ones(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "label": [0, 1, 1],
        "age": pa.array([None, -1, 40], pa.int32()),
        "big": pa.array([None, 7, 2**64 - 1], pa.uint64()),
        "new": [None, True, False],
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    declared = [
        FeatureDeclaration("age", kind="dense", missing=-9.0),
        FeatureDeclaration(
            "bucket", column="age", transform="bucketize", boundaries=(-5.0, 0.0)
        ),
        FeatureDeclaration("big", kind="dense", missing=-9.0),
        FeatureDeclaration("as_id", column="age"),
        FeatureDeclaration("new", kind="dense", missing=0.5),
    ]
    inputs, _ = whole(ParquetLog(tmp_path, declared, test=0))
    assert inputs["age"].numpy().tolist() == [-9, -1, 40]
    assert inputs["bucket"].numpy().tolist() == [-1, 1, 2]
    assert inputs["big"].numpy().tolist() == [-9, 7, 2.0**64]
    assert inputs["new"].numpy().tolist() == [0.5, 1, 0]
    assert inputs["as_id"].numpy().tolist() == [-1, -1, 40]


@pytest.mark.parametrize("twice", ["label", "user"])
def test_two_columns_of_one_name_are_refused(tmp_path, twice):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = ["label", "user", twice]
    table = pa.Table.from_arrays([pa.array([0, 1])] * 3, names=names)
    parquet.write_table(table, tmp_path / "a.parquet")
    message = f"must have one column '{twice}'.* with 2 columns of that name"
    with pytest.raises(ValueError, match=message):
        ParquetLog(tmp_path, USER)


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
        whole(log)


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
    path = log_files.write_lines(tmp_path / "day_0", [GOOD])
    with pytest.raises(ValueError, match=re.escape(message)):
        Criteo(path, **arguments)


def test_windows_shuffle_across_blocks(open_small_log):
    log = open_small_log("criteo")
    in_order = whole(log)[0]["categories"].numpy().tolist()
    shuffled = whole(log, seed=3)[0]["categories"].numpy().tolist()
    places = [in_order.index(row) for row in shuffled]
    # The first window, of some 100 rows, has blocks from more than one place.
    assert max(places[:100]) - min(places[:100]) > 130
    assert np.abs(np.diff(places)).mean() > 20
