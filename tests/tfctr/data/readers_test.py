"""The logs that lie in files, against plain Python."""

import gzip
import math

import numpy as np
import pytest
import tensorflow as tf

from helpers import log_files
from tfctr.data import Criteo, FeatureDeclaration, ParquetLog, Position
from tfctr.distributed.dataset import _shard


def listed(value):
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_criteo_is_what_python_reads(tmp_path, name):
    lines = log_files.criteo_lines()
    path = log_files.write_lines(tmp_path / name, lines, "\r\n")
    log = Criteo(path, test=0.25)
    assert len(log._blocks) > 5
    for split, some in (("train", lines[:300]), ("test", lines[300:])):
        inputs, labels = log_files.whole(log, split)
        expected_labels, numbers, ids = log_files.criteo_oracle(some)
        assert labels.numpy().tolist() == expected_labels
        np.testing.assert_allclose(inputs["numbers"], numbers, rtol=1e-6)
        np.testing.assert_array_equal(inputs["categories"], ids)


def test_avazu_is_what_python_reads(open_small_log):
    log = open_small_log("avazu")
    fields = [line.split(",") for line in log_files.avazu_lines()[:360]]
    inputs, labels = log_files.whole(log)
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
    inputs, labels = log_files.whole(open_small_log(kind))
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
    _, labels = log_files.whole(log, "test")
    assert labels.numpy().tolist() == log_files.criteo_oracle(lines[20:])[0]


def test_columns_of_criteo_can_be_chosen(tmp_path):
    lines = log_files.criteo_lines(10)
    path = log_files.write_lines(tmp_path / "train", lines)
    features = [
        FeatureDeclaration("count", column="I3", kind="dense"),
        FeatureDeclaration("ids", columns=("C2", "C1")),
        FeatureDeclaration("id", column="I1"),
    ]
    inputs, _ = log_files.whole(Criteo(path, features, test=0))
    fields = [line.split("\t") for line in lines]
    assert inputs["count"].numpy().tolist() == [float(some[3]) for some in fields]
    assert inputs["id"].numpy().tolist() == [int(some[1] or -1) for some in fields]
    categories = log_files.criteo_oracle(lines)[2]
    assert inputs["ids"].numpy().tolist() == [[b, a] for a, b, *_ in categories]


@pytest.mark.usefixtures("small_blocks")
def test_gzip_files_may_hold_several_streams(tmp_path):
    lines = log_files.criteo_lines(200)
    parts = ["\n".join(lines[:90]) + "\n" + lines[90][:30], lines[90][30:] + "\n"]
    parts += ["\n".join(lines[91:])]
    path = tmp_path / "train.gz"
    path.write_bytes(b"".join(gzip.compress(part.encode()) for part in parts))
    log = Criteo(path, test=0)
    np.testing.assert_array_equal(
        log_files.whole(log)[0]["categories"], log_files.criteo_oracle(lines)[2]
    )


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
    inputs, _ = log_files.whole(ParquetLog(tmp_path, declared, test=0))
    assert inputs["age"].numpy().tolist() == [-9, -1, 40]
    assert inputs["bucket"].numpy().tolist() == [-1, 1, 2]
    assert inputs["big"].numpy().tolist() == [-9, 7, 2.0**64]
    assert inputs["new"].numpy().tolist() == [0.5, 1, 0]
    assert inputs["as_id"].numpy().tolist() == [-1, -1, 40]


def test_windows_shuffle_across_blocks(open_small_log):
    log = open_small_log("criteo")
    in_order = log_files.whole(log)[0]["categories"].numpy().tolist()
    shuffled = log_files.whole(log, seed=3)[0]["categories"].numpy().tolist()
    places = [in_order.index(row) for row in shuffled]
    # The first window, of some 100 rows, has blocks from more than one place.
    assert max(places[:100]) - min(places[:100]) > 130
    assert np.abs(np.diff(places)).mean() > 20
