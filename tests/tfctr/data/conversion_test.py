"""`tfctr data`: what it writes is read again by others, and trains a model."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from helpers import log_files
from tfctr import cli
from tfctr.commands import data as command
from tfctr.data import (
    Avazu,
    Criteo,
    FeatureDeclaration,
    ParquetLog,
    SyntheticStream,
    TFRecordLog,
    conversion,
    part_writer,
    synthesis,
    table_writers,
)
from tfctr.metrics import auc

pa = pytest.importorskip("pyarrow")
ROOT = pathlib.Path(__file__).resolve().parents[3]


def run(*arguments):
    assert cli.main([str(argument) for argument in arguments]) == 0


def expected_columns(lines):
    names = [
        "label",
        *(f"I{n}" for n in range(1, 14)),
        *(f"C{n}" for n in range(1, 27)),
    ]
    fields = zip(*(line.split("\t") for line in lines), strict=True)
    return {
        name: [None if x == "" else int(x, 16 if name[0] == "C" else 10) for x in some]
        for name, some in zip(names, fields, strict=True)
    }


def test_criteo_becomes_parquet(tmp_path, small_blocks, capsys):
    lines = log_files.criteo_lines(120)
    log_files.write_lines(tmp_path / "day_0.gz", [*lines[:9], "bad", *lines[9:]])
    convert = ["data", "convert", tmp_path / "day_0.gz"]
    formats = ["--from", "criteo", "--to", "parquet"]
    run(*convert, tmp_path / "out", *formats, "--on-bad-line", "skip")
    assert "120 examples in 1 files; 1 bad lines left out." in capsys.readouterr().out
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "out")
    assert table.to_pydict() == expected_columns(lines)
    bad = cli.main([str(word) for word in [*convert, tmp_path / "no", *formats]])
    assert bad == 2
    assert "day_0.gz, line 10, must hold 40 fields" in capsys.readouterr().err


def test_parquet_becomes_records(tmp_path):
    some = [log_files.WHOLE, *log_files.rows(60)]
    log_files.write_parquet(tmp_path / "a", some)
    run(
        *("data", "convert", tmp_path / "a", tmp_path / "out"),
        *("--from", "parquet", "--to", "tfrecord"),
    )
    (path,) = (tmp_path / "out").iterdir()
    for record, row in zip(tf.data.TFRecordDataset(str(path)), some, strict=True):
        example = tf.train.Example.FromString(record.numpy())
        expected = tf.train.Example.FromString(log_files.example_bytes(row))
        assert example == expected


def test_the_command_offers_what_the_library_knows():
    assert command.SOURCES == conversion.SOURCES
    assert command.TARGETS == conversion.TARGETS
    assert set(command.SHAPES) == set(synthesis.SHAPES)


@pytest.fixture
def short_files(monkeypatch):
    """Makes files of some 50 rows."""
    monkeypatch.setattr(part_writer, "_FILE_ROWS", 50)
    monkeypatch.setattr(table_writers, "GROUP_ROWS", 10)


@pytest.mark.usefixtures("small_blocks", "short_files")
def test_files_have_their_names_when_all_are_whole(tmp_path):
    from pyarrow import parquet

    lines = log_files.criteo_lines(200)
    path = log_files.write_lines(tmp_path / "day_0", lines)
    during = set()

    def look(_):
        during.update(file.name for file in (tmp_path / "out").iterdir())

    done = conversion.convert(
        path, tmp_path / "out", "criteo", "parquet", progress=look
    )
    names = [f"part-{number:05}.parquet" for number in range(done["files"])]
    assert len(names) > 1
    assert during == {f"_{name}" for name in names}  # Which readers pass over.
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == names
    labels = [parquet.read_table(file)["label"].to_pylist() for file in files]
    assert sum(labels, []) == expected_columns(lines)["label"]


@pytest.mark.usefixtures("small_blocks", "short_files")
@pytest.mark.parametrize("target", ["parquet", "tfrecord"])
def test_after_an_error_nothing_is_left(tmp_path, target):
    lines = log_files.criteo_lines(200)
    path = log_files.write_lines(tmp_path / "day_0", [*lines, "bad"])
    with pytest.raises(ValueError, match="day_0, line 201, must hold 40 fields"):
        conversion.convert(path, tmp_path / "out", "criteo", target)
    assert list((tmp_path / "out").iterdir()) == []
    done = conversion.convert(path, tmp_path / "out", "criteo", target, "skip")
    assert (done["examples"], done["bad_lines"]) == (200, 1)


@pytest.mark.parametrize(
    ("source", "lines", "received"),
    [
        ("criteo", [], "none. Check the path and its format."),
        (
            "criteo",
            ["1,2", "3"],
            "none. Left out so far: 2, the first: .*day_0, line 1, ",
        ),
        (
            "avazu",
            [log_files.AVAZU_HEADER, "x"],
            "none. Left out so far: 1, the first: .*day_0, line 2, ",
        ),
    ],
)
@pytest.mark.parametrize("target", ["parquet", "tfrecord"])
def test_a_log_without_a_good_line_is_refused(
    tmp_path, source, lines, received, target
):
    path = log_files.write_lines(tmp_path / "day_0", lines)
    message = f"day_0' must hold at least one good example. Received: {received}"
    with pytest.raises(ValueError, match=message):
        conversion.convert(path, tmp_path / "out", source, target, "skip")
    assert list((tmp_path / "out").iterdir()) == []


def test_parquet_without_rows_is_refused(tmp_path):
    from pyarrow import parquet

    parquet.write_table(pa.table({"label": pa.array([], pa.int8())}), tmp_path / "a")
    with pytest.raises(ValueError, match="at least one good example. Received: none."):
        conversion.convert(tmp_path / "a", tmp_path / "out", "parquet", "tfrecord")


@pytest.mark.parametrize(
    ("target", "writer"),
    [
        ("tsv", table_writers.CriteoWriter),
        ("parquet", table_writers.ParquetWriter),
        ("tfrecord", table_writers.TFRecordWriter),
    ],
)
def test_what_cannot_be_completed_is_not_left(tmp_path, monkeypatch, target, writer):
    close = writer.close

    def fail(self):
        close(self)
        raise OSError("No space left on device")

    monkeypatch.setattr(writer, "close", fail)
    with pytest.raises(OSError, match="No space left"):
        conversion.synthesize(SyntheticStream(5, max_ids=2), tmp_path / "out", target)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("other", "received"),
    [
        ({"label": [1], "user": ["x"]}, "'user: string' in the place of 'user: int64'"),
        ({"label": [1]}, "nothing in the place of 'user: int64'."),
        ({"user": [1], "label": [1]}, "'user: int64' in the place of 'label: int64'."),
        ({"label": [1], "user": [1], "x": [1]}, "'x: int64' in the place of nothing."),
    ],
)
def test_parquet_files_of_other_columns_are_named(tmp_path, other, received):
    from pyarrow import parquet

    source = tmp_path / "log"
    source.mkdir()
    parquet.write_table(pa.table({"label": [0], "user": [1]}), source / "a")
    parquet.write_table(pa.table(other), source / "b")
    with pytest.raises(ValueError) as raised:
        conversion.convert(source, tmp_path / "out", "parquet", "parquet")
    message = str(raised.value)
    assert message.startswith(f"{source / 'b'} must have the columns of {source / 'a'}")
    assert received in message
    assert message.endswith("Convert it by itself, or write it anew.")


def test_a_column_that_may_not_be_null_is_another(tmp_path):
    from pyarrow import parquet

    source = tmp_path / "log"
    source.mkdir()
    for name, nullable in [("a", True), ("b", False)]:
        schema = pa.schema([pa.field("label", pa.int64(), nullable)])
        parquet.write_table(pa.table({"label": [0]}, schema), source / name)
    message = "Received: 'label: int64 not null' in the place of 'label: int64'."
    with pytest.raises(ValueError, match=message):
        conversion.convert(source, tmp_path / "out", "parquet", "parquet")


def test_rows_of_parquet_files_are_not_skipped(tmp_path, capsys):
    path = log_files.write_parquet(tmp_path / "a", log_files.rows(3))
    words = ["data", "convert", str(path), str(tmp_path / "out")]
    formats = ["--from", "parquet", "--to", "tfrecord", "--on-bad-line", "skip"]
    assert cli.main([*words, *formats]) == 2
    error = capsys.readouterr().err
    assert (
        "is for lines and records; Parquet files have none. Received: source_format="
        in error
    )


def test_a_target_that_holds_something_is_refused(tmp_path):
    log_files.write_lines(tmp_path / "a", log_files.criteo_lines(3))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(ValueError, match="new directory, or an empty one. Received"):
        conversion.convert(tmp_path / "a", tmp_path / "out", "criteo", "parquet")
    assert (tmp_path / "out" / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("csv", "parquet", "`source_format` must be one of 'criteo', 'avazu', 'parq"),
        ("criteo", "csv", "`target_format` must be one of 'parquet', 'tfrecord'. Rec"),
    ],
)
def test_unknown_formats_are_refused(tmp_path, source, target, message):
    with pytest.raises(ValueError, match=message):
        conversion.convert(tmp_path, tmp_path, source, target)


@pytest.mark.parametrize(
    ("shape", "reader", "examples"), [("criteo", Criteo, 400), ("avazu", Avazu, 300)]
)
def test_a_drawn_log_is_read_as_it_was_drawn(tmp_path, shape, reader, examples):
    stream = SyntheticStream(examples, shape, max_ids=50, drift=3.0)
    labels, probabilities = conversion.synthesize(stream, tmp_path / "a", "tsv")
    (clicks,) = stream.chunks(examples)
    log = reader(tmp_path / "a", test=0)
    ((inputs, found),) = log.batches("train", examples)
    np.testing.assert_array_equal(found, clicks.labels)
    np.testing.assert_array_equal(inputs["categories"], clicks.ids)
    if shape == "criteo":
        logs = np.log1p(np.maximum(clicks.numbers, 0))
        np.testing.assert_allclose(inputs["numbers"], logs, rtol=1e-6)
    last = examples // 10
    np.testing.assert_array_equal(labels, clicks.labels[-last:])
    np.testing.assert_array_equal(probabilities, clicks.probabilities[-last:])


@pytest.mark.parametrize("shape", ["criteo", "avazu"])
@pytest.mark.parametrize("target", ["parquet", "tfrecord"])
def test_a_drawn_log_is_the_same_in_every_format(tmp_path, shape, target):
    stream = SyntheticStream(300, shape, max_ids=50, seed=2)
    (clicks,) = stream.chunks(300)
    conversion.synthesize(stream, tmp_path / "a", target)
    names = {"criteo": ["C1", "C26"], "avazu": ["C1", "C21"]}[shape]
    declared = [FeatureDeclaration(name) for name in names]
    if shape == "criteo":
        declared.append(FeatureDeclaration("I13", kind="dense", missing=-1.0))
    else:
        declared.append(FeatureDeclaration("hour"))
    reader = {"parquet": ParquetLog, "tfrecord": TFRecordLog}[target]
    label = {"criteo": "label", "avazu": "click"}[shape]
    log = reader(tmp_path / "a", declared, label, test=0)
    ((inputs, labels),) = log.batches("train", 300)
    np.testing.assert_array_equal(labels, clicks.labels)
    for name, place in zip(names, (0, -1), strict=True):
        np.testing.assert_array_equal(inputs[name], clicks.ids[:, place])
    if shape == "criteo":
        np.testing.assert_array_equal(inputs["I13"], clicks.numbers[:, -1])
    else:  # Ten days, hour by hour.
        hours = inputs["hour"].numpy().tolist()
        assert hours == sorted(hours)
        assert (hours[0], hours[-1]) == (14102100, 14103023)


def test_chunks_of_any_size_are_one_log():
    stream = SyntheticStream(500, max_ids=40, seed=3)
    (whole,) = stream.chunks(500)
    parts = list(stream.chunks(170))
    for name in ("ids", "numbers", "labels", "probabilities"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name))


def test_ids_drift_and_follow_a_power_law():
    (drifting,) = SyntheticStream(20_000, max_ids=30, drift=2.0).chunks(20_000)
    (steady,) = SyntheticStream(20_000, max_ids=30, drift=0.0).chunks(20_000)
    field = drifting.ids[:, 0]
    first, last = set(field[:2_000].tolist()), set(field[-2_000:].tolist())
    assert not first & last  # After two turns all are others.
    middle = set(field[5_000:7_000].tolist())
    assert first & middle and middle - first
    assert len(set(steady.ids[:, 0].tolist())) == 30
    counts = np.sort(np.unique(steady.ids[:, 0], return_counts=True)[1])[::-1]
    # Of a bounded Zipf law: the first id is more frequent than the tenth by far.
    assert counts[0] > 5 * counts[9] > 5 * counts[-1]


def test_old_ids_fade_while_new_ones_grow():
    (clicks,) = SyntheticStream(50_000, max_ids=200, drift=1.0).chunks(50_000)
    tenths = clicks.ids[:, 2].reshape(10, -1)
    old, new = (np.unique(tenths[place]) for place in (0, -1))
    of_old, of_new = (
        [np.isin(tenth, ids).mean() for tenth in tenths] for ids in (old, new)
    )
    # Steadily, up to a few of the 5,000 clicks of a tenth.
    assert (np.diff(of_old) < 0.02).all() and (np.diff(of_new) > -0.02).all()
    assert of_old[0] == of_new[-1] == 1.0
    assert of_old[-1] < 0.5 > of_new[0]


@pytest.mark.parametrize(("shape", "drift"), [("criteo", 1.0), ("avazu", 4.0)])
def test_the_teacher_ranks_well(shape, drift):
    stream = SyntheticStream(20_000, shape, max_ids=1_000, drift=drift)
    (clicks,) = stream.chunks(20_000)
    assert 0.8 < auc(clicks.labels, clicks.probabilities) < 0.95
    assert 0.15 < clicks.labels.mean() < 0.4
    # The labels are drawn from the probabilities: they add up alike.
    spread = np.sqrt((clicks.probabilities * (1 - clicks.probabilities)).sum())
    difference = clicks.labels.sum() - clicks.probabilities.sum()
    assert abs(difference) < 5 * spread


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": "x"}, "one of 'criteo', 'avazu'. Received: shape='x'."),
        ({"num_examples": 0}, f"must be from 1 to {2**53}. Received: num_examples=0."),
        ({"max_ids": 1}, f"must be from 2 to {2**53}. Received: max_ids=1."),
        ({"max_ids": 10**23}, f"to {2**53}. Received: max_ids={10**23}."),
        ({"num_examples": 10**23}, f"to {2**53}. Received: num_examples={10**23}."),
        ({"drift": float("nan")}, "to 1000000. Received: drift=nan."),
        ({"drift": float("inf")}, "to 1000000. Received: drift=inf."),
        ({"drift": -0.5}, "must be from 0 to 1000000. Received: drift=-0.5."),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SyntheticStream(**{"num_examples": 10, **arguments})


@pytest.mark.parametrize(
    ("example", "like", "to"),
    [
        ("criteo", "criteo", "tsv"),
        pytest.param("avazu", "avazu", "tsv", marks=pytest.mark.soak),
        ("parquet", "criteo", "parquet"),
        pytest.param("parquet", "criteo", "tfrecord", marks=pytest.mark.soak),
        ("large_batch_avazu", "avazu", "tsv"),
        pytest.param("large_batch_criteo", "criteo", "tsv", marks=pytest.mark.soak),
    ],
)
def test_a_drawn_log_trains_by_the_examples(tmp_path, capsys, example, like, to):
    path = tmp_path / "log"
    run(
        *("data", "synthesize", path, "--like", like, "--to", to),
        *("--examples", 2_000, "--max-ids", 20, "--drift", 0),
    )
    printed = capsys.readouterr().out
    facts = json.loads((path / "_synthesis.json").read_text())
    assert f"tenth: {facts['best_auc']:.4f}" in printed
    overrides = {
        "data.path": path,
        "run.directory": tmp_path / "run",
        "run.batch_size": 200,
        "run.epochs": 1,
        "model.hidden_units": "[8]",
        "model.bottom_units": "[8]",
        "model.dim": 4,
        "tables.learning_rate": 0.05,
    }
    if to == "tfrecord":
        overrides["data.kind"] = to
    words = [w for pair in overrides.items() for w in ("--set", "{}={}".format(*pair))]
    result = tmp_path / "result.json"
    run("train", ROOT / "examples" / f"{example}.toml", *words, "--json", result)
    assert 0.4 < json.loads(result.read_text())["auc"] <= facts["best_auc"] + 0.05
