"""The loop of progressive training, against oracles."""

import collections
import io
import json
import re
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import timed_logs
from helpers.clock import Clock
from tfctr import builders, distributed, progressive, training
from tfctr.config import TrainConfig
from tfctr.data import NegativeSampling
from tfctr.metrics import auc


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run: its result, its log, what was done in which order, and predicted."""
    path = tmp_path_factory.mktemp("log")
    pq.write_table(pa.table(timed_logs.draw_log()), path / "0.parquet")
    order, tested, lines = [], [], []
    predict, fit = training.predict_split, training.fit
    clock = Clock()

    def record_predict(model, log, split):
        order.append(("test", len(log.examples)))
        tested.append(predict(model, log, split))
        clock.now += 1000.0
        return tested[-1]

    def record_fit(model, log, *arguments, **options):
        order.append(("train", len(log.examples)))
        fit(model, log, *arguments, **options)
        clock.now += 2.0 if clock.now > 2000.0 else 500.0  # The first one traces.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "predict_split", record_predict)
        patch.setattr(training, "fit", record_fit)
        time = types.SimpleNamespace(perf_counter=clock)
        patch.setattr(progressive.loop, "time", time)
        asked = timed_logs.config(path, tmp_path_factory.mktemp("run"))
        _, result = progressive.train(asked, lines.append)
    return path, result, order, tested, lines


def test_each_line_is_told_at_once(write_log, tmp_path, monkeypatch):
    told = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(told))
    log = write_log(timed_logs.draw_log(60, hours=1))
    progressive.train(timed_logs.config(log, tmp_path))
    assert told.getvalue().startswith(b"day 1: ")


def test_each_window_is_tested_before_it_is_trained_on(recorded):
    _, result, order, _, _ = recorded
    assert len(result["windows"]) == 4
    assert order == [
        step
        for window in result["windows"]
        for step in (
            ("test", window["tested_examples"]),
            ("train", window["examples"]),
        )
    ]
    # Once over all of it, every example a step's.
    steps = sum(-(-window["examples"] // 128) for window in result["windows"])
    assert {table["step"] for table in result["tables"].values()} == {steps}


def test_the_speed_is_of_true_examples_and_of_training_alone(recorded):
    _, result, *_ = recorded
    windows = result["windows"]
    assert all(window["examples"] % 128 for window in windows)  # Short last batches.
    assert [window["train_seconds"] for window in windows] == [500.0, 2.0, 2.0, 2.0]
    assert [window["seconds"] for window in windows[1:]] == [1002.0] * 3
    examples = sum(window["examples"] for window in windows[1:])
    assert result["examples_per_second"] == examples / 6.0


def test_metrics_are_those_of_the_predictions(recorded):
    _, result, _, tested, lines = recorded
    for window, (labels, probabilities) in zip(result["windows"], tested, strict=True):
        assert window["auc"] == auc(labels, probabilities)
        right = np.where(labels == 1, probabilities, 1 - probabilities)
        loss = -np.log(right.astype(np.float64)).mean()
        assert window["log_loss"] == pytest.approx(loss)
    everything = [np.concatenate(part) for part in zip(*tested, strict=True)]
    (day,) = result["days"]
    assert day["auc"] == auc(*everything)
    assert day["clicks"] == 600 == sum(window["clicks"] for window in result["windows"])
    assert len(lines) == 1 and "day 1: 600 clicks" in lines[0]
    assert json.loads(json.dumps(result)).keys() == result.keys()


def test_baselines_of_the_loop_know_the_windows_before(recorded):
    path, result, *_ = recorded
    log = timed_logs.open_log(path, negatives=NegativeSampling(2, seed=1))
    counts = collections.Counter()
    for window, found in zip(log.windows(3600), result["windows"], strict=True):
        is_tested = window.is_tested
        scores = [counts[item] for item in window.items[is_tested].tolist()]
        assert found["popularity_auc"] == auc(window.labels[is_tested], scores)
        counts.update(window.items[window.labels == 1].tolist())


def test_labelled_logs_need_neither_item_nor_negatives(write_log, tmp_path):
    columns = timed_logs.draw_log(hours=2)
    is_late = columns["time"] >= 10_800
    columns["label"][~is_late] = 1  # The first window has one class.
    columns["time"][is_late] += 3 * 86_400
    asked = timed_logs.config(
        write_log(columns), tmp_path, "progressive.item=", "progressive.negatives=0"
    )
    lines = []
    _, result = progressive.train(asked, lines.append)
    windows = result["windows"]
    assert [day["start"] for day in result["days"]] == [
        "1970-01-01T02:00:00+00:00",
        "1970-01-04T03:00:00+00:00",
    ]
    assert [line[:6] for line in lines] == ["day 1:", "day 2:"]
    assert windows[0]["auc"] is None and windows[0]["log_loss"] > 0
    assert all(window["auc"] is not None for window in windows[1:])
    assert sum(window["tested_examples"] for window in windows) == 600
    assert not any(name.endswith("_auc") for name in windows[0])
    assert "nan" in progressive.to_csv(windows).splitlines()[1]
    assert "AUC" in progressive.report(result)


def test_rows_are_bounded_by_expiry_and_admission(recorded, tmp_path):
    path, result, *_ = recorded
    free = result["windows"]
    assert {window["expired_rows"] for window in free} == {0}
    assert sum(window["new_rows"] for window in free) == free[-1]["table_rows"]
    assert free[-1]["table_rows"] == result["rows"]
    overrides = ("expiry_every=2", "expiry_max_rows=15", "admission=count")
    asked = timed_logs.config(
        *(path, tmp_path, "run.batch_size=32", "tables.admission_min_count=9"),
        *(f"tables.{override}" for override in overrides),
    )
    bound = progressive.train(asked, lambda line: None)[1]["windows"]
    # Two tables; between two looks, each of two features of an example may make a row.
    assert max(window["table_rows"] for window in bound) <= 2 * (15 + 2 * 32 * 2)
    assert bound[-1]["table_rows"] < free[-1]["table_rows"]
    rows = 0
    for window in bound:
        assert window["expired_rows"] > 0
        rows += window["new_rows"] - window["expired_rows"]
        assert window["table_rows"] == rows
    assert bound[-1]["waiting_ids"] > 0 < bound[0]["refused_lookups"]
    assert {window["refused_lookups"] for window in free} == {0}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.mode=online", "'run.mode' must be one of 'epochs', 'progressive'"),
        ("progressive.window_seconds=0", "'progressive.window_seconds' must be"),
        ("progressive.pool_seconds=-1", "'progressive.pool_seconds' must be"),
        ("progressive.recent_seconds=nan", "'progressive.recent_seconds' must be"),
        ("progressive.negatives=-1", "'progressive.negatives' must be 0 or more"),
        ("progressive.checkpoint_every=-1", "'progressive.checkpoint_every' must be"),
        ("progressive.time=", "which column tells the time"),
        ("data.kind=criteo", "'data.kind' must be 'parquet'"),
        ("data.path=", "'data.path' must name a file"),
        ("data.test_path=day_9", "tests on each window. Received: data.test_path='day"),
        ("data.test_share=0.2", "tests on each window. Received: data.test_share=0.2."),
        ("data.test_split=random", "data.test_split='random'. Leave them out."),
        ("data.on_bad_line=stop", "`on_bad_line` must be one of 'raise', 'skip'"),
        ("model.embedding=static", "goes with model.embedding='dynamic'"),
        ("run.warmup_epochs=1", "has no epochs to warm up in"),
        ("tables.admission=sometimes", "'tables.admission' must be one of 'count'"),
        ("tables.admission_min_count=0 tables.admission=count", "`min_count` must be"),
        ("tables.expiry_every=-1", "'tables.expiry_every' must be 0 or more"),
        ("tables.expiry_every=5", "'tables.expiry_every' goes with"),
        ("tables.expiry_max_rows=5", "'tables.expiry_every' goes with"),
    ],
)
def test_mistakes_in_the_config_are_told(write_log, tmp_path, override, message):
    path = write_log(timed_logs.draw_log(10))
    with pytest.raises(ValueError, match=re.escape(message)):
        progressive.train(timed_logs.config(path, tmp_path, *override.split()))


def test_admission_on_several_ranks_is_refused_before_training(
    write_log, tmp_path, monkeypatch
):
    asked = timed_logs.config(
        write_log(timed_logs.draw_log(10)), tmp_path, "tables.admission=count"
    )
    monkeypatch.setattr(distributed, "size", lambda: 2)
    with pytest.raises(ValueError, match="goes with a single rank"):
        builders.build_model(asked, builders.open_timed_log(asked))


def test_only_its_own_loop_trains_progressively(write_log, tmp_path):
    asked = timed_logs.config(write_log(timed_logs.draw_log(10)), tmp_path)
    with pytest.raises(ValueError, match="needs run.mode='epochs'. .*'progressive'"):
        training.train(asked)


def test_features_must_be_declared(write_log, tmp_path):
    asked = TrainConfig.from_dict(
        {**timed_logs.SECTIONS, "features": []},
        [
            f"data.path={write_log(timed_logs.draw_log(10))}",
            f"run.directory={tmp_path}",
        ],
    )
    with pytest.raises(ValueError, match="must be told its features"):
        progressive.train(asked)


def test_a_model_beats_popularity_on_real_clicks(data_dir, write_log, tmp_path):
    files = list((data_dir / "globo").glob("*.parquet"))
    if not files:
        pytest.skip(f"there is no Parquet file in {data_dir / 'globo'}")
    table = next(pq.ParquetFile(files[0]).iter_batches(20_000))
    path = write_log({name: table[name] for name in table.schema.names}, group=10_000)
    asked = TrainConfig.load(
        "examples/globo.toml",
        [f"data.path={path}", f"run.directory={tmp_path}", "run.batch_size=512"],
    )
    _, result = progressive.train(asked, lambda line: None)
    assert sum(window["clicks"] for window in result["windows"]) == 20_000
    assert result["auc"] > result["popularity_auc"] + 0.05
