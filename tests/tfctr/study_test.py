"""The large-batch study: what it trains, what it writes, and how it goes on."""

import csv
import json
import math
import os
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr import training
from tfctr.config import TrainConfig
from tfctr.study import COLUMNS, Cell, large_batch, scale_config, table, training_run

CONFIG = TrainConfig.from_dict(
    {
        "data": {"num_examples": 2000, "fields": 2, "ids_per_field": 20},
        "model": {"dim": 2, "hidden_units": [4]},
        "tables": {
            "learning_rate": 1e-3,
            "l2": 1e-5,
            "clip_ratio": 1.0,
            "clip_floor": 1e-4,
        },
        "run": {
            "epochs": 1,
            "batch_size": 64,
            "learning_rate": 2e-3,
            "warmup_epochs": 1.0,
        },
    }
)


@pytest.fixture
def trained(monkeypatch):
    """The configs that were trained, without training them."""
    configs = []

    def train(config):
        configs.append(config)
        if len(configs) == 3:
            raise KeyboardInterrupt
        return {
            "auc": 0.7 + len(configs) / 100,
            "log_loss": 0.5,
            "minutes": 2.0,
            "clipped_share": 0.25,
        }

    monkeypatch.setattr(training_run, "train_apart", train)
    return configs


@pytest.mark.parametrize(
    ("rule", "embeddings", "dense", "l2", "clip", "warmup"),
    [
        ("none", 1e-3, 2e-3, 1e-5, 0.0, 0.0),
        ("sqrt", 4e-3, 8e-3, 4e-5, 0.0, 0.0),
        ("linear", 16e-3, 32e-3, 1e-5, 0.0, 0.0),
        ("cowclip", 1e-3, 8e-3, 16e-5, 1.0, 1.0),
    ],
)
def test_each_rule_scales_as_the_paper_says(rule, embeddings, dense, l2, clip, warmup):
    scaled = scale_config(CONFIG, Cell("dcn", 16 * 64, rule))
    assert (scaled.model.name, scaled.run.batch_size) == ("dcn", 1024)
    assert scaled.tables.learning_rate == pytest.approx(embeddings)
    assert scaled.run.learning_rate == pytest.approx(dense)
    assert scaled.tables.l2 == pytest.approx(l2)
    assert (scaled.tables.clip_ratio, scaled.run.warmup_epochs) == (clip, warmup)
    assert scaled.data == CONFIG.data


def test_an_interrupted_study_goes_on_where_it_was(tmp_path, trained):
    path = tmp_path / "study.csv"
    arguments = (CONFIG, [64, 128], ["none", "cowclip"], ["deep_fm", "dlrm"], path)
    with pytest.raises(KeyboardInterrupt):
        large_batch(*arguments)
    lines = []
    rows = large_batch(*arguments, tell=lines.append)
    assert lines[0] == "[1/8] deep_fm, 64, none: done before"
    assert lines[2] == (
        "[3/8] deep_fm, 128, none: AUC 0.7400, log loss 0.5000, 2.0 minutes, 25.00% of "
        "rows clipped"
    )
    # The third once more, since it was not finished; no other twice.
    assert [config.run.batch_size for config in trained] == [
        *(64, 64, 128),
        *(128, 128, 64, 64, 128, 128),
    ]
    with path.open() as file:
        read = list(csv.DictReader(file))
    assert [tuple(row) for row in read] == [COLUMNS] * 8
    assert [(row["network"], row["batch_size"], row["rule"]) for row in read] == [
        (network, size, rule)
        for network in ("deep_fm", "dlrm")
        for size in ("64", "128")
        for rule in ("none", "cowclip")
    ]
    found = [float(row["auc"]) for row in read]
    assert found == pytest.approx([row["auc"] for row in rows])
    assert path.with_suffix(".md").read_text().splitlines()[:4] == [
        "| network | rule | 64 | 128 |",
        "|---|---|---|---|",
        "| deep_fm | none | 0.7100 | 0.7400 |",
        "| deep_fm | cowclip | 0.7200 | 0.7500 |",
    ]
    assert "deep_fm" in path.with_suffix(".svg").read_text()
    assert not list(tmp_path.glob("partial.*"))


def test_rules_that_come_to_the_same_are_trained_once(tmp_path, trained):
    rows = large_batch(CONFIG, [64], output=tmp_path / "study.csv")
    assert [row["rule"] for row in rows] == ["none", "sqrt", "linear", "cowclip"]
    assert [row["auc"] for row in rows] == pytest.approx([0.71, 0.71, 0.71, 0.72])
    assert len(trained) == 2


def test_rows_of_another_config_are_not_mixed_in(tmp_path, trained):
    path = tmp_path / "study.csv"
    large_batch(CONFIG, [64], ["none"], output=path)
    other = TrainConfig.from_dict(CONFIG.to_dict(), ["run.epochs=2"])
    message = r"stands in '.*study.json': run.epochs=1. Received: run.epochs=2. Name"
    with pytest.raises(ValueError, match=message):
        large_batch(other, [64], ["none"], output=path)
    # Where the data is says nothing of what it is.
    moved = TrainConfig.from_dict(CONFIG.to_dict(), ["data.path=elsewhere"])
    assert len(large_batch(moved, [64], ["none"], output=path)) == len(trained) == 1


def test_a_study_has_the_same_features_throughout(tmp_path, trained):
    path = tmp_path / "study.csv"
    features = [{"name": "user"}, {"name": "ads", "columns": ["ad", "brand"]}]
    declared = TrainConfig.from_dict({**CONFIG.to_dict(), "features": features})
    for _ in range(2):
        large_batch(declared, [64], ["none"], output=path)
    with pytest.raises(ValueError, match=r"study.json': features=\(.*: features=\(\)"):
        large_batch(CONFIG, [64], ["none"], output=path)
    assert len(trained) == 1


def test_a_config_of_an_earlier_version_has_the_defaults(tmp_path, trained):
    path = tmp_path / "study.csv"
    large_batch(CONFIG, [64], ["none"], output=path)
    beside = tmp_path / "study.json"
    sections = json.loads(beside.read_text())
    del sections["tables"]["stddev"]  # As before there was such an entry.
    beside.write_text(json.dumps(sections))
    large_batch(CONFIG, [64], ["none"], output=path)
    other = TrainConfig.from_dict(CONFIG.to_dict(), ["tables.stddev=0.5"])
    with pytest.raises(ValueError, match=r"tables.stddev=0.0. Received: .*=0.5. Name"):
        large_batch(other, [64], ["none"], output=path)
    assert len(trained) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "study.csv",
            "deep_fm,many,none,0.7",
            "line 2 must be as a study wrote it: ne",
        ),
        ("study.csv", "deep_fm,64,none,0.7", "Received: deep_fm,64,none,0.7,None,None"),
        (
            "study.csv",
            "deep_fm,64,none,0.7,0.5,2,x",
            "Mend the line, or remove it, and",
        ),
        (
            "study.csv",
            "deep_fm,64,cube,0.7,0.5,2,0",
            r"study.csv', line 2 must tell of a run .* Received: deep_fm,64,cube.*"
            r"The rule of a run must be one of none, sqrt, linear, cowclip\..* Mend",
        ),
        (
            "study.csv",
            "deep_fm,96,none,0.7,0.5,2,0",
            "study.csv', line 2 must tell .* must be a multiple of run.batch_size=64",
        ),
        ("study.csv", "fm,64,none,0.7,0.5,2,0", "line 2 must .* model.name='fm'. Mend"),
        ("study.json", "{", r"study.json' must hold the config .* Name another --outp"),
        ("study.json", None, "Received: .*No such file .* or remove both files"),
    ],
)
def test_edited_files_are_refused(tmp_path, trained, name, text, message):
    path = tmp_path / "study.csv"
    large_batch(CONFIG, [64], ["none"], output=path)
    edited = tmp_path / name
    if text is None:
        edited.unlink()
    else:
        header = path.read_text().splitlines()[0] + "\n" if name == path.name else ""
        edited.write_text(header + text)
    with pytest.raises(ValueError, match=message):
        large_batch(CONFIG, [64], ["none"], output=path)


@pytest.mark.parametrize("name", ["study", "study.md", "study.json"])
def test_what_is_written_has_names_of_its_own(tmp_path, trained, name):
    with pytest.raises(ValueError, match=rf"must end in .csv: .* --output .*/{name}\."):
        large_batch(CONFIG, [64], ["none"], output=tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "cell", "message"),
    [
        ([], Cell("deep_fm", 64, "cube"), "must be one of none, sqrt, linear, cowclip"),
        ([], Cell("deep_fm", 96, "none"), "must be a multiple of run.batch_size=64"),
        ([], Cell("deep_fm", 0, "none"), "must be a multiple of run.batch_size=64"),
        (
            ["tables.clip_ratio=0"],
            Cell("deep_fm", 64, "none"),
            "must say how the rule 'cowclip' clips",
        ),
        (
            ["model.embedding=static"],
            Cell("deep_fm", 64, "none"),
            "which can clip. Received: model.embedding='static'. Set it to 'dynamic'.",
        ),
        ([], Cell("fm", 64, "none"), "'deep_fm', .* Received: model.name='fm'."),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(overrides, cell, message):
    config = TrainConfig.from_dict(CONFIG.to_dict(), overrides)
    with pytest.raises(ValueError, match=message):
        scale_config(config, cell)


def test_a_missing_matplotlib_is_found_before_anything_is_trained(
    tmp_path, trained, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"Install it: pip install matplotlib"):
        large_batch(CONFIG, [64], ["none"], output=tmp_path / "study.csv")
    assert not trained


def test_a_process_that_is_killed_is_told(monkeypatch):
    monkeypatch.setattr(training_run, "_train", os._exit)
    with pytest.raises(ChildProcessError, match="Received: it was killed, most often"):
        training_run.train_apart(9)


def test_a_bad_gradient_of_a_table_is_a_training_that_diverged(monkeypatch):
    table = TableConfig("ads", dim=2, optimizer=keras.optimizers.SGD())
    layer = DynamicEmbedding(FeatureConfig(table))

    def train(config):
        with tf.GradientTape() as tape:
            rows = layer(np.array([[1]]), training=True)
            loss = tf.reduce_sum(rows * math.nan)
        return tape.gradient(loss, layer.trainable_variables)

    monkeypatch.setattr(training, "train", train)
    assert math.isnan(training_run._train(CONFIG)["auc"])
    # Other errors of ops are none of diverging.
    monkeypatch.setattr(training, "train", lambda config: tf.reshape([1, 2], [3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="reshape"):
        training_run._train(CONFIG)


def test_a_training_that_diverged_has_no_share():
    row = {"network": "dcn", "batch_size": 64, "rule": "cowclip"}
    lost = {"auc": math.nan, "clipped_share": math.nan}
    assert table([{**row, **lost}]).splitlines()[2:] == [
        "| dcn | cowclip | diverged |",
        "| | rows clipped | diverged |",
    ]


def test_it_trains(tmp_path):
    path = tmp_path / "study.csv"
    wild = TrainConfig.from_dict(CONFIG.to_dict(), ["run.learning_rate=1e30"])
    rows = [
        *large_batch(CONFIG, [128], ["cowclip"], output=path),
        *large_batch(wild, [64], ["none"], output=str(tmp_path / "wild.csv")),
    ]
    assert 0.5 < rows[0]["auc"] < 1.0
    assert 0.0 < rows[0]["minutes"] < 5.0
    assert 0.0 < rows[0]["clipped_share"] <= 1.0
    assert math.isnan(rows[1]["auc"])
    assert "diverged" in (tmp_path / "wild.md").read_text()
