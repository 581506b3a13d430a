"""`convert` of TFRecord files and MovieLens, and into TFRecord and back."""

import gzip
import re

import numpy as np
import pytest
import tensorflow as tf

from helpers import log_files
from tfctr import cli
from tfctr.data import (
    FeatureDeclaration,
    MovieLens,
    ParquetLog,
    conversion,
    record_tables,
)
from tfctr.data.bad_lines import BadLines

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(record_tables, "_BLOCK_RECORDS", 7)


def feature(**lists):
    kinds = {
        "int64_list": tf.train.Int64List,
        "float_list": tf.train.FloatList,
        "bytes_list": tf.train.BytesList,
    }
    return tf.train.Feature(**{kind: kinds[kind](value=x) for kind, x in lists.items()})


def example(**features):
    features = tf.train.Features(feature=features)
    return tf.train.Example(features=features).SerializeToString()


def without_nulls(some):
    """Rows as they come back: an empty list is what is left of none."""
    lists = ("items", "words")
    return [
        {name: [] if name in lists and x is None else x for name, x in row.items()}
        for row in some
    ]


@pytest.mark.parametrize("between", ["tfrecord", "parquet"])
def test_parquet_is_the_same_after_a_round_trip(tmp_path, between):
    some = [log_files.WHOLE, *log_files.rows(60)]
    log_files.write_parquet(tmp_path / "a", some)
    conversion.convert(tmp_path / "a", tmp_path / "b", "parquet", between)
    conversion.convert(tmp_path / "b", tmp_path / "c", between, "parquet")
    back = parquet.read_table(tmp_path / "c")
    if between == "parquet":
        assert back.equals(parquet.read_table(tmp_path / "a"))
        return
    assert [{**log_files.WHOLE, **row} for row in back.to_pylist()] == without_nulls(
        some
    )
    assert {field.name: str(field.type) for field in back.schema} == {
        "city": "string",
        "items": "list<element: int64>",
        "label": "int64",
        "left": "int64",
        "price": "float",
        "right": "int64",
        "user": "int64",
        "words": "list<element: string>",
    }


def test_records_are_the_same_after_a_round_trip(tmp_path, capsys):
    some = [log_files.WHOLE, *log_files.rows(40)]
    place = tmp_path / "a"
    place.mkdir()
    log_files.write_records(place / "day_2", some[:9])
    log_files.write_records(place / "day_10", some[9:])
    words = [("tfrecord", "b", "parquet"), ("parquet", "c", "tfrecord")]
    for source, target, kind in words:
        formats = ["--from", source, "--to", kind]
        assert (
            cli.main(["data", "convert", str(place), *formats, str(tmp_path / target)])
            == 0
        )
        place = tmp_path / target
    assert "41 examples in 1 files; 0 bad lines left out." in capsys.readouterr().out
    (path,) = place.iterdir()
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    spec = {
        name: tf.io.RaggedFeature(kind)
        for name, kind in {
            "user": tf.int64,
            "price": tf.float32,
            "city": tf.string,
            "items": tf.int64,
            "words": tf.string,
        }.items()
    }
    first = [log_files.example_bytes(row) for row in some]
    found, expected = (tf.io.parse_example(some, spec) for some in (records, first))
    for name in spec:
        assert found[name].to_list() == expected[name].to_list()


def test_kinds_are_those_of_all_records(tmp_path):
    # What is a list, and what is no text, shows only at the end of the file.
    records = [
        example(a=feature(int64_list=[5]), b=feature(bytes_list=[b"x"])),
        *[example()] * 10,
        example(empty=tf.train.Feature(), none=feature(float_list=[])),
        example(a=feature(int64_list=[1, 2]), b=feature(bytes_list=[b"\xc3"])),
        example(late=feature(float_list=[0.5])),
    ]
    path = log_files.write_records(tmp_path / "a", records)
    conversion.convert(path, tmp_path / "out", "tfrecord", "parquet")
    table = parquet.read_table(tmp_path / "out")
    assert table.to_pydict() == {
        "a": [[5], *[[]] * 11, [1, 2], []],
        "b": [b"x", *[None] * 11, b"\xc3", None],
        "late": [*[None] * 13, 0.5],
        "none": [None] * 14,
    }


def test_bytes_that_are_text_together_only_stay_bytes(tmp_path):
    records = [
        example(a=feature(bytes_list=[b"\xc3"])),
        example(a=feature(bytes_list=[b"\xa5"])),
    ]
    path = log_files.write_records(tmp_path / "a", records)
    conversion.convert(path, tmp_path / "out", "tfrecord", "parquet")
    assert parquet.read_table(tmp_path / "out").to_pydict() == {"a": [b"\xc3", b"\xa5"]}


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (b"no example", "a `tf.train.Example`. Received: 'no example'."),
        (
            example(user=feature(bytes_list=[b"\xff"])),
            "the feature 'user' as `int64_list`, like {path}, record 1. Received: "
            "'bytes_list'.",
        ),
    ],
    ids=["no example", "another kind"],
)
def test_records_that_are_not_like_the_others_are_named(
    tmp_path, capsys, bad, expected
):
    some = [log_files.WHOLE, *log_files.rows(20)]
    path = log_files.write_records(tmp_path / "a", [*some[:16], bad, *some[16:], bad])
    out = tmp_path / "out"
    words = ["data", "convert", str(path), str(out), "--from", "tfrecord"]
    words += ["--to", "parquet"]
    assert cli.main(words) == 2
    [line] = capsys.readouterr().err.strip().split("\n")
    assert line == (
        f"tfctr: {path}, record 17, must hold {expected.format(path=path)} Correct the "
        "record, or leave such records out with on_bad_line='skip'."
    )
    assert list(out.iterdir()) == []
    assert cli.main([*words, "--on-bad-line", "skip"]) == 0
    assert "21 examples in 1 files; 2 bad lines" in capsys.readouterr().out
    users = parquet.read_table(out)["user"].to_pylist()
    assert users == [row["user"] for row in some]


def test_files_that_are_no_whole_record_files_are_named(tmp_path):
    path = log_files.write_records(tmp_path / "a", log_files.rows(20))
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    message = f'{path}, record 20, must hold a whole record. Received: "truncated'
    with pytest.raises(ValueError, match=message):
        conversion.convert(path, tmp_path / "out", "tfrecord", "parquet")
    done = conversion.convert(path, tmp_path / "out", "tfrecord", "parquet", "skip")
    assert done == {"examples": 19, "bad_lines": 1, "files": 1}
    path.write_bytes(gzip.compress(data))
    with pytest.raises(ValueError, match=re.escape(f"Unpack it: gunzip '{path}'.")):
        conversion.convert(path, tmp_path / "no", "tfrecord", "parquet")
    path.write_bytes(b"")
    with pytest.raises(
        ValueError, match="one good record with a feature. Received: none."
    ):
        conversion.convert(path, tmp_path / "no", "tfrecord", "parquet")


def test_records_that_change_meanwhile_are_refused(tmp_path):
    source = tmp_path / "log"
    source.mkdir()
    path = log_files.write_records(source / "a", log_files.rows(20))
    log_files.write_records(source / "b", log_files.rows(20))
    size, read = path.stat().st_size, []

    def write_again(num_bytes):
        read.append(num_bytes)
        if sum(read) > 3 * size:  # The first file has been read twice.
            log_files.write_records(path, log_files.rows(21))

    message = f"'{path}' must stay as it was when the conversion began. Received: other"
    with pytest.raises(ValueError, match=message):
        conversion.convert(
            source, tmp_path / "out", "tfrecord", "parquet", progress=write_again
        )
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("tables_before", [0, 1])
@pytest.mark.parametrize("value", [{"int64_list": [7]}, {"bytes_list": [b"\xff"]}])
def test_records_that_change_between_the_passes_are_refused(
    tmp_path, tables_before, value
):
    for name in "ab":
        with tf.io.TFRecordWriter(str(tmp_path / name)) as file:
            file.write(example(word=feature(bytes_list=[b"text"])))
    bad_lines = BadLines("raise")
    tables = record_tables.record_tables(tmp_path, bad_lines, lambda num_bytes: None)
    for _ in range(tables_before):
        assert next(tables).to_pydict() == {"word": ["text"]}
    with tf.io.TFRecordWriter(str(tmp_path / "b")) as file:
        file.write(example(word=feature(**value)))
    message = f"'{tmp_path}/b' must stay as it was when the conversion began. Received:"
    with pytest.raises(ValueError, match=re.escape(message)):
        next(tables)


@pytest.mark.parametrize("kind", ["tfrecord", "movielens", "parquet"])
def test_progress_ends_with_all_bytes(tmp_path, movielens_path, kind):
    some = log_files.rows(20)
    path = {
        "tfrecord": lambda: log_files.write_records(tmp_path / "a", some),
        "parquet": lambda: log_files.write_parquet(tmp_path / "a", some, 7),
        "movielens": lambda: movielens_path,
    }[kind]()
    told = []
    conversion.convert(path, tmp_path / "out", kind, "parquet", progress=told.append)
    assert len(told) > 1
    assert sum(told) == conversion.source_bytes(path, kind)


@pytest.mark.parametrize("kind", ["parquet", "tfrecord"])
def test_movielens_is_the_same_as_by_its_reader(tmp_path, movielens_path, kind):
    with (movielens_path / "ratings.dat").open("a") as ratings:
        ratings.write("1::999::5::0\n")
    log = MovieLens(movielens_path, on_bad_line="skip")
    out = tmp_path / "out"
    done = conversion.convert(movielens_path, out, "movielens", kind, "skip")
    assert done == {"examples": 360, "bad_lines": 1, "files": 1}
    if kind == "tfrecord":
        conversion.convert(out, tmp_path / "parquet", kind, "parquet")
        out = tmp_path / "parquet"
    kinds = {"int64": "id", "string": "string"}
    declared = [
        FeatureDeclaration(x.name, kind="strings" if x.is_bag else kinds[x.dtype])
        for x in log.features
    ]
    # The same split: the training examples come first.
    num_test = log.num_examples("test")
    copy = ParquetLog(out, declared, test=(num_test + 0.5) / 360)
    for split in ("train", "test"):
        number = log.num_examples(split)
        assert copy.num_examples(split) == number > 0
        ((inputs, labels),) = copy.batches(split, number)
        ((expected, expected_labels),) = log.batches(split, number)
        np.testing.assert_array_equal(labels, expected_labels)
        for name, value in expected.items():
            if isinstance(value, tf.RaggedTensor):
                assert inputs[name].to_list() == value.to_list()
            else:
                np.testing.assert_array_equal(inputs[name], value)


def test_a_directory_that_is_not_of_movielens_is_named(tmp_path, capsys):
    words = ["data", "convert", str(tmp_path), str(tmp_path / "out")]
    assert cli.main([*words, "--from", "movielens", "--to", "parquet"]) == 2
    assert "directory with the files ratings.dat, users" in capsys.readouterr().err


def in_lists(values, kind):
    return pa.array([[value] for value in values], pa.list_(kind))


# Of a type that TFRecord has not, but means the same: the values, and what is written.
PLAIN = {
    "float16": (pa.array([np.float16(1.5), None]), [[1.5], []]),
    "double": (pa.array([0.1, 1.0]), [[np.float32(0.1)], [1.0]]),
    "bool": (pa.array([True, False]), [[1], [0]]),
    "uint64": (pa.array([2**64 - 2, 7], pa.uint64()), [[-2], [7]]),
    "uint64s": (in_lists([2**63, 7], pa.uint64()), [[-(2**63)], [7]]),
    "float16s": (in_lists([np.float16(0.5)] * 2, pa.float16()), [[0.5], [0.5]]),
    "of a size": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], [3, 4]]),
    "dictionary": (pa.array(["å", None]).dictionary_encode(), [["å".encode()], []]),
    "binary": (pa.array([b"\xff\0", b""], pa.large_binary()), [[b"\xff\0"], [b""]]),
    "null": (pa.nulls(2), [[], []]),
}


def test_types_that_mean_the_same_are_written(tmp_path):
    table = pa.table({name: array for name, (array, _) in PLAIN.items()})
    parquet.write_table(table, tmp_path / "a")
    conversion.convert(tmp_path / "a", tmp_path / "out", "parquet", "tfrecord")
    (path,) = (tmp_path / "out").iterdir()
    kinds = {int: tf.int64, float: tf.float32, np.float32: tf.float32, bytes: tf.string}
    found = tf.io.parse_example(
        [record.numpy() for record in tf.data.TFRecordDataset(str(path))],
        {
            name: tf.io.RaggedFeature(
                kinds[type(lists[0][0])] if any(lists) else tf.int64
            )
            for name, (_, lists) in PLAIN.items()
        },
    )
    assert {name: x.to_list() for name, x in found.items()} == {
        name: lists for name, (_, lists) in PLAIN.items()
    }


@pytest.mark.parametrize(
    ("kind", "received", "advice"),
    [
        (pa.date32(), "date32[day]", "as int64 or string"),
        (pa.timestamp("us"), "timestamp[us]", "as int64 or string"),
        (pa.time64("us"), "time64[us]", "as int64 or string"),
        (pa.decimal128(9, 2), "decimal128(9, 2)", "as float64 or string"),
        (pa.list_(pa.date32()), "list<element: date32[day]>", "as int64 or string"),
        (
            pa.list_(pa.list_(pa.int64())),
            "list<element: list<element: int64>>",
            "flattened into columns of its own or without it",
        ),
        (
            pa.struct({"x": pa.int64()}),
            "struct<x: int64>",
            "flattened into columns of its own or without it",
        ),
    ],
    ids=str,
)
def test_types_that_records_cannot_hold_are_named_first(
    tmp_path, capsys, kind, received, advice
):
    source, out = tmp_path / "log", tmp_path / "out"
    source.mkdir()
    parquet.write_table(pa.table({"label": [1]}), source / "a")
    parquet.write_table(pa.table({"label": [1], "x": pa.nulls(1, kind)}), source / "b")
    words = ["data", "convert", str(source), str(out), "--from", "parquet"]
    assert cli.main([*words, "--to", "tfrecord"]) == 2
    printed = capsys.readouterr()
    [line] = printed.err.strip().split("\n")
    assert line == (
        f"tfctr: {source / 'b'} must have columns of integers, floats, booleans, texts "
        "or bytes, or lists of them, to become TFRecord. Received: column 'x' of type "
        f"{received}. Write it anew {advice}, or convert to Parquet."
    )
    assert list(out.iterdir()) == []
    # Parquet holds them all.
    done = conversion.convert(source / "b", out, "parquet", "parquet")
    assert done["examples"] == 1


def test_columns_of_one_name_are_refused(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    parquet.write_table(table, tmp_path / "log")
    with pytest.raises(ValueError, match="to become TFRecord. Received: 2 columns 'a'"):
        conversion.convert(tmp_path / "log", tmp_path / "out", "parquet", "tfrecord")


def test_a_bad_record_says_nothing_of_the_columns(tmp_path):
    bad = example(
        a=feature(float_list=[1.0]),
        b=feature(bytes_list=[b"x"]),
        junk=feature(int64_list=[5]),
    )
    good = example(a=feature(int64_list=[2]), b=feature(int64_list=[7]))
    with tf.io.TFRecordWriter(str(tmp_path / "log.tfrecord")) as writer:
        for record in (example(a=feature(int64_list=[1])), bad, good, good):
            writer.write(record)
    source, target = tmp_path / "log.tfrecord", tmp_path / "b"
    done = conversion.convert(source, target, "tfrecord", "parquet", "skip")
    assert done == {"examples": 3, "bad_lines": 1, "files": 1}
    assert parquet.read_table(target).to_pylist() == [
        {"a": 1, "b": None},
        {"a": 2, "b": 7},
        {"a": 2, "b": 7},
    ]


def test_a_record_that_only_python_can_read_is_left_out(tmp_path):
    # A feature of two kinds: Python's protobuf takes the last, TensorFlow refuses it.
    def delimited(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    kinds = (feature(int64_list=[1]), feature(bytes_list=[b"odd"]))
    both = b"".join(kind.SerializeToString() for kind in kinds)
    entry = delimited(1, b"word") + delimited(2, both)
    odd = delimited(1, delimited(1, entry))
    assert tf.train.Example.FromString(odd).features.feature["word"] == kinds[1]

    even = example(word=feature(bytes_list=[b"even"]))
    with tf.io.TFRecordWriter(str(tmp_path / "log.tfrecord")) as writer:
        for record in [even, odd, even, even, odd] * 2:
            writer.write(record)
    source, target = tmp_path / "log.tfrecord", tmp_path / "b"
    done = conversion.convert(source, target, "tfrecord", "parquet", "skip")
    assert done == {"examples": 6, "bad_lines": 4, "files": 1}
    assert parquet.read_table(target)["word"].to_pylist() == ["even"] * 6
    with pytest.raises(ValueError, match="log.tfrecord, record 2, must hold"):
        conversion.convert(source, tmp_path / "c", "tfrecord", "parquet")


def test_files_of_other_types_make_no_records(tmp_path):
    columns = {
        "a": pa.table({"price": pa.array([1, 2]), "note": pa.nulls(2)}),
        "b": pa.table({"price": pa.array([1.5, None]), "note": pa.array(["x", "y"])}),
    }
    source, target = tmp_path / "log", tmp_path / "records"
    source.mkdir()
    for name, table in columns.items():
        parquet.write_table(table, source / f"{name}.parquet")
    message = (
        f"{source / 'b.parquet'} must have column 'price' as {source / 'a.parquet'} "
        "has it, which becomes `int64_list` of a `tf.train.Example`. Received: type "
        "double, which becomes `float_list`. Write one of them anew."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        conversion.convert(source, target, "parquet", "tfrecord")
    # A column of nulls alone is of any kind.
    parquet.write_table(columns["b"].drop_columns("price"), source / "b.parquet")
    done = conversion.convert(source, target, "parquet", "tfrecord")
    assert done["examples"] == 4


@pytest.mark.parametrize("source", ["", "_part-00000.tfrecord"])
def test_a_conversion_does_not_write_over_its_source(tmp_path, source):
    left = tmp_path / "_part-00000.tfrecord"
    left.write_bytes(b"what a killed conversion left")
    with pytest.raises(ValueError, match=r"another directory than that of the source"):
        conversion.convert(tmp_path / source, tmp_path, "tfrecord", "parquet")
    assert left.exists()
