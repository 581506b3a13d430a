"""`TrainingReport`: its numbers are those that sets and dicts count."""

import collections
import json
import os
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import (
    CountAdmission,
    DynamicEmbedding,
    FeatureConfig,
    TableConfig,
    TieredStorage,
)
from tfctr.callbacks import Throughput, TrainingReport
from tfctr.report import EventReader, History
from tfctr.report.scalars import has_tensorboard

BATCH, STEPS, EVERY, EPOCHS = 16, 7, 3, 2
PARTS = ("input", "lookup", "dense", "update")


def make_model(ssd=None, steps_per_execution=1):
    sgd = keras.optimizers.SGD(0.1)
    plain = TableConfig("plain", 2, sgd)
    choosy = TableConfig("choosy", 2, sgd, admission=CountAdmission(3))
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in "abc"}
    tables = DynamicEmbedding(
        {"a": FeatureConfig(plain), "b": FeatureConfig(choosy)}, name="tables"
    )
    found = tables({name: inputs[name] for name in "ab"})
    # Room for fifty rows.
    storage = TieredStorage(ram=50 * 32, ssd=ssd) if ssd else None
    deep = DynamicEmbedding(TableConfig("deep", 2, sgd), storage=storage, name="deep")
    vectors = [*found.values(), deep(inputs["c"])]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(vectors))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    return model


def make_ids(seed=0, steps=STEPS):
    random = np.random.default_rng(seed)
    # The last batch is shorter.
    n = steps * BATCH - 5
    most = {"a": 60, "b": 60, "c": 400}
    return {name: random.integers(0, most[name], n) * 2**40 for name in most}


def make_dataset(ids):
    labels = np.zeros(len(ids["a"]), np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(BATCH)


def batches_of(ids):
    return [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]


def read(directory):
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def of_kind(events, kind):
    return [event for event in events if event["kind"] == kind]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory and the ids of a run that validates."""
    directory = tmp_path_factory.mktemp("run")
    model, ids = make_model(ssd=str(directory / "ssd")), make_ids()
    report = TrainingReport(directory, every=EVERY)
    others = make_dataset(make_ids(seed=1))
    history = model.fit(
        report.watch(make_dataset(ids)),
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        validation_data=others,
        callbacks=[report],
    )
    return directory, ids, history.history


def total(lines, table, name):
    return sum(line["tables"][table].get(name, 0) for line in lines)


def test_lines_come_every_so_many_steps_and_at_the_end_of_an_epoch(trained):
    events = read(trained[0])
    assert [(event["kind"], event["step"]) for event in events] == [
        ("begin", 0),
        *(("steps", 3), ("steps", 6), ("steps", 7), ("epoch", 7)),
        *(("steps", 10), ("steps", 13), ("steps", 14), ("epoch", 14)),
    ]
    lines = of_kind(events, "steps")
    assert [line["steps"] for line in lines] == [3, 3, 1] * EPOCHS
    assert [line["epoch"] for line in lines] == [0, 0, 0, 1, 1, 1]
    assert [line["examples"] for line in lines] == [48, 48, 11] * EPOCHS
    assert [event["time"] for event in events] == sorted(e["time"] for e in events)


def test_a_table_without_limits_finds_what_it_has_seen(trained):
    directory, ids, _ = trained
    lines = of_kind(read(directory), "steps")
    seen, step = set(), 0
    for line in lines:
        found = inserted = 0
        for _ in range(line["steps"]):
            batch = set(batches_of(ids["a"])[step % STEPS])
            found += len(batch & seen)
            inserted += len(batch - seen)
            seen |= batch
            step += 1
        table = line["tables"]["tables/plain"]
        assert table.get("found_rows", 0) == found
        assert table.get("inserted_rows", 0) == inserted
        assert table["rows"] == table["known_rows"] == len(seen)
        assert table["updated_rows"] == found + inserted
        assert table["hit_rate"] == pytest.approx(found / (found + inserted))
        assert "evicted_rows" not in table and "refused_keys" not in table


def test_admission_refuses_until_an_id_was_seen_three_times(trained):
    directory, ids, _ = trained
    lines = of_kind(read(directory), "steps")
    counts, has_row, refused, found = collections.Counter(), set(), 0, 0
    for _ in range(EPOCHS):
        for batch in batches_of(ids["b"]):
            of_batch = collections.Counter(batch.tolist())
            for id, count in of_batch.items():
                found += id in has_row
                counts[id] += count
                if counts[id] >= 3:
                    has_row.add(id)
                else:
                    refused += count
    assert total(lines, "tables/choosy", "refused_keys") == refused > 0
    assert total(lines, "tables/choosy", "inserted_rows") == len(has_row)
    assert total(lines, "tables/choosy", "found_rows") == found
    assert lines[-1]["tables"]["tables/choosy"]["rows"] == len(has_row)


def test_rows_that_leave_memory_are_found_on_disk(trained):
    directory, ids, _ = trained
    lines = of_kind(read(directory), "steps")
    distinct = sum(len(set(batch)) for batch in batches_of(ids["c"])) * EPOCHS
    known = len(set(ids["c"]))
    promoted = total(lines, "deep/deep", "promoted_rows")
    evicted = total(lines, "deep/deep", "evicted_rows")
    last = lines[-1]["tables"]["deep/deep"]
    assert total(lines, "deep/deep", "inserted_rows") == known
    assert total(lines, "deep/deep", "found_rows") == distinct - known - promoted
    assert promoted > 0
    # What came into memory left it, or is there.
    assert known + promoted - evicted == last["rows"]
    assert last["rows"] + last["rows_on_disk_only"] == known == last["known_rows"]
    # Rows that still wait to be written are read without the disk.
    assert total(lines, "deep/deep", "stalled_lookups") <= EPOCHS * STEPS


def test_an_epoch_is_the_sum_of_its_lines(trained):
    directory, _, history = trained
    events = read(directory)
    for index, epoch in enumerate(of_kind(events, "epoch")):
        lines = [e for e in of_kind(events, "steps") if e["epoch"] == index]
        for name in ("steps", "examples", "seconds"):
            assert epoch[name] == pytest.approx(sum(line[name] for line in lines))
        for table in ("tables/plain", "tables/choosy", "deep/deep"):
            for name in ("found_rows", "promoted_rows", "refused_keys"):
                counted = epoch["tables"][table].get(name, 0)
                assert counted == total(lines, table, name)
            assert epoch["tables"][table]["rows"] == lines[-1]["tables"][table]["rows"]
        expected = {name: values[index] for name, values in history.items()}
        assert epoch["metrics"] == pytest.approx(expected)


def test_the_parts_make_up_the_time(trained):
    for line in of_kind(read(trained[0]), "steps"):
        parts = {part: line[f"{part}_seconds"] for part in PARTS}
        assert all(seconds >= 0.0 for seconds in parts.values()), parts
        assert parts["lookup"] > 0.0 and parts["update"] > 0.0
        assert sum(parts.values()) == pytest.approx(line["seconds"])


@pytest.mark.skipif(not has_tensorboard(), reason="there is no TensorBoard")
def test_tensorboard_has_the_same_numbers(trained):
    (path,) = (trained[0] / "tensorboard").iterdir()
    found = {}
    for record in tf.compat.v1.train.summary_iterator(str(path)):
        for value in record.summary.value:
            found[value.tag, record.step] = float(tf.make_ndarray(value.tensor))
    events = read(trained[0])
    for line in of_kind(events, "steps"):
        speed = line["examples"] / line["seconds"]
        table = line["tables"]["deep/deep"]
        expected = {
            "speed/examples_per_second": speed,
            "time/lookup": line["lookup_seconds"] / line["seconds"],
            "metrics/loss": line["metrics"]["loss"],
            "tables/deep/deep/rows": table["rows"],
            "tables/deep/deep/hit_rate": table["hit_rate"],
        }
        for tag, value in expected.items():
            assert found[tag, line["step"]] == pytest.approx(value, rel=1e-6), tag
    for epoch in of_kind(events, "epoch"):
        value = found["epoch/val_loss", epoch["step"]]
        assert value == pytest.approx(epoch["metrics"]["val_loss"], rel=1e-6)


def fit(model, report, epochs=1, ids=None, **options):
    dataset = report.watch(make_dataset(ids or make_ids()))
    options = {"shuffle": False, "verbose": 0, "callbacks": [report], **options}
    return model.fit(dataset, epochs=epochs, **options)


def test_runs_go_on_in_the_same_file(tmp_path):
    model = make_model()
    report = TrainingReport(tmp_path, every=EVERY, page=False, tensorboard=False)
    fit(model, report)
    fit(model, report)  # Goes on, and begins nothing.
    first = read(tmp_path)
    assert [event["step"] for event in of_kind(first, "begin")] == [0]
    assert of_kind(first, "steps")[-1]["step"] == 2 * STEPS

    # The process was killed within a line, and what came after step 9 is done again.
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"kind": "steps", "st')
    model.optimizer.iterations.assign(9)
    report = TrainingReport(tmp_path, every=EVERY, page=False, tensorboard=False)
    fit(model, report)
    text = (tmp_path / "events.jsonl").read_text()
    assert text.startswith("".join(json.dumps(event) + "\n" for event in first))
    history = History()
    history.add(EventReader(tmp_path).read())
    steps = [line["step"] for line in history.intervals]
    assert steps == [3, 6, 7, *(12, 15, 16)]
    assert [epoch["step"] for epoch in history.epochs] == [7, 16]
    # Tables that had rows before count from here on.
    distinct = sum(len(set(batch)) for batch in batches_of(make_ids()["a"]))
    assert total(history.intervals[3:], "tables/plain", "found_rows") == distinct


def test_a_run_that_begins_anew_keeps_the_earlier_ones(tmp_path):
    texts = []
    (tmp_path / "model.keras").write_text("not of the report")
    for _ in range(3):
        report = TrainingReport(tmp_path, every=EVERY, page=False)
        (tmp_path / "report.html").write_text(f"run {len(texts)}")
        reader = EventReader(tmp_path)
        reader.read()
        fit(make_model(), report)
        # Who follows goes on with the new file, though that is no shorter.
        assert reader.read() == read(tmp_path)
        texts.append((tmp_path / "events.jsonl").read_text())
        assert texts[-1].count('"begin"') == 1
    for number in (1, 2):
        folder = tmp_path / f"earlier-{number}"
        assert (folder / "events.jsonl").read_text() == texts[number - 1]
        assert (folder / "report.html").read_text() == f"run {number}"
        assert EventReader(folder).read()[0]["kind"] == "begin"
    if has_tensorboard():
        files = list(tmp_path.rglob("tensorboard/*"))
        assert len(files) == len({file.parent for file in files}) == 3
    assert (tmp_path / "model.keras").exists()


def test_calls_of_several_steps_end_intervals(tmp_path):
    model = make_model(steps_per_execution=2)
    report = TrainingReport(tmp_path, every=3, page=False, tensorboard=False)
    fit(model, report, epochs=2)
    lines = of_kind(read(tmp_path), "steps")
    # Calls end after 2, 4, 6 and 7 steps.
    assert [line["step"] for line in lines] == [4, 7, 11, 14]
    assert [line["examples"] for line in lines] == [64, 43, 64, 43]


def test_without_watching_the_data_neither_examples_nor_input_are_known(tmp_path):
    model = make_model()
    report = TrainingReport(tmp_path, every=3, page=False, tensorboard=False)
    model.fit(make_dataset(make_ids()), verbose=0, shuffle=False, callbacks=[report])
    for line in of_kind(read(tmp_path), "steps"):
        assert line["examples"] is None and line["input_seconds"] is None
        known = [line[f"{part}_seconds"] for part in PARTS[1:]]
        assert sum(known) == pytest.approx(line["seconds"])


@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_watching_changes_no_batch_and_counts_its_examples(tmp_path, kind):
    rows = tf.ragged.constant([[1], [2, 3], [], [4], [5]], dtype=tf.int64)
    ids = {"dense": rows.to_tensor(), "ragged": rows, "sparse": rows.to_sparse()}[kind]
    dataset = tf.data.Dataset.from_tensor_slices(({"ids": ids}, tf.range(5))).batch(2)
    report = TrainingReport(tmp_path, page=False, tensorboard=False)
    watched = report.watch(dataset)
    assert watched.element_spec == dataset.element_spec
    assert len(watched) == len(dataset) == 3
    for (ids, labels), (same_ids, same_labels) in zip(dataset, watched, strict=True):
        assert type(ids["ids"]) is type(same_ids["ids"])
        np.testing.assert_array_equal(labels, same_labels)
        parts, same_parts = (
            tf.nest.flatten(batch["ids"], expand_composites=True)
            for batch in (ids, same_ids)
        )
        for part, same_part in zip(parts, same_parts, strict=True):
            np.testing.assert_array_equal(part, same_part)
    assert report._input.read()[1] == 5


def test_the_page_is_there_at_the_end(trained):
    assert "<h1>" in (trained[0] / "report.html").read_text()


@pytest.mark.parametrize(
    ("page_age", "is_drawn"), [(None, True), (1, True), (-1, False)]
)
def test_a_page_that_a_killed_process_left_behind_is_drawn(
    page_age, is_drawn, tmp_path
):
    fit(make_model(), TrainingReport(tmp_path, page=False, tensorboard=False))
    events, page = tmp_path / "events.jsonl", tmp_path / "report.html"
    assert not page.exists()
    if page_age is not None:
        page.write_text("drawn before")
        told = events.stat().st_mtime
        os.utime(page, (told - page_age, told - page_age))
    TrainingReport(tmp_path, tensorboard=False).draw_page()
    assert ("<h1>" in page.read_text()) == is_drawn


def test_an_earlier_run_is_set_aside_with_the_page_that_it_is_owed(tmp_path):
    fit(make_model(), TrainingReport(tmp_path, page=False, tensorboard=False))
    fit(make_model(), TrainingReport(tmp_path, tensorboard=False))
    assert "<h1>" in (tmp_path / "earlier-1" / "report.html").read_text()
    assert "<h1>" in (tmp_path / "report.html").read_text()


def test_no_page_is_drawn_of_nothing(tmp_path):
    TrainingReport(tmp_path, tensorboard=False).draw_page()
    assert not (tmp_path / "report.html").exists()


def test_one_fit_counts_as_the_window_and_the_next_as_an_epoch(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    report = TrainingReport(tmp_path, page=False, tensorboard=False)
    report.begin_window(5, 3600.0, {"auc": 0.5})
    for _ in range(2):
        model.fit(np.zeros((8, 1)), np.zeros((8, 1)), 2, verbose=0, callbacks=[report])
    ends = [event for event in read(tmp_path) if event["kind"] in ("window", "epoch")]
    told = [(event["kind"], event["epoch"], event["step"]) for event in ends]
    assert told == [("window", 5, 4), ("epoch", 0, 8)]
    assert ends[0]["metrics"]["auc"] == 0.5 and "auc" not in ends[1]["metrics"]


def test_the_speed_is_that_of_throughput(tmp_path, monkeypatch, clock):
    """Of full batches, as Throughput takes every batch for one."""
    ids = {name: column[: 4 * BATCH] for name, column in make_ids().items()}

    def pass_time(batch, logs):
        clock.now += 0.5 + batch

    passing = keras.callbacks.LambdaCallback(on_train_batch_end=pass_time)
    report = TrainingReport(tmp_path, every=1, page=False, tensorboard=False)
    throughput = Throughput(BATCH, warm_up_batches=0)
    model = make_model()
    monkeypatch.setattr(time, "perf_counter", clock)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, report, ids=ids, callbacks=[passing, report, throughput])
    lines = of_kind(read(tmp_path), "steps")
    assert [line["examples"] / line["seconds"] for line in lines] == pytest.approx(
        [BATCH / 0.5, BATCH / 1.5, BATCH / 2.5, BATCH / 3.5]
    )
    (epoch,) = of_kind(read(tmp_path), "epoch")
    speed = epoch["examples"] / epoch["seconds"]
    assert speed == pytest.approx(throughput.examples_per_second) == 4 * BATCH / 8.0
