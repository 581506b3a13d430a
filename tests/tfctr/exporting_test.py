"""Exports of what a training run has saved, and of checkpoints."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr import cli, exporting
from tfctr.builders import build_model, open_log
from tfctr.callbacks import Checkpoint
from tfctr.checkpoint import restore_weights
from tfctr.config import TrainConfig
from tfctr.export.draft import read_manifest
from tfctr.export.saved_model import CHECKED_ROWS

TOML = """
[data]
kind = "synthetic"
num_examples = 400
fields = 2
ids_per_field = 30
[model]
dim = 2
hidden_units = [4]
[run]
batch_size = 64
directory = "unused"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained model, its directory, and the inputs of some rows."""
    directory = tmp_path_factory.mktemp("run")
    (directory / "config.toml").write_text(TOML)
    config = TrainConfig.load(directory / "config.toml")
    log = open_log(config)
    model = build_model(config, log)
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", run_eagerly=True)
    checkpoint = Checkpoint(directory / "checkpoints")
    data, _ = checkpoint.resume(model, log.batches("train", 64))
    model.fit(data, callbacks=[checkpoint], shuffle=False, verbose=0)
    (directory / "kept").mkdir()
    model.save(directory / "kept" / "model.keras")
    (directory / "kept" / "config.json").write_text(json.dumps(config.to_dict()))
    inputs, _ = next(iter(log.batches("test", 20)))
    return model, directory, inputs


def served(path, inputs):
    loaded = tf.saved_model.load(str(path))
    return loaded.signatures["serving_default"](**inputs)["probability"]


@pytest.mark.parametrize(
    "source, with_config",
    [
        ("kept", False),
        ("kept/model.keras", False),
        ("checkpoints", True),
        ("checkpoints/step-{step:012d}", True),
    ],
)
def test_it_predicts_as_the_trained_model(run, tmp_path, source, with_config):
    model, directory, inputs = run
    source = source.format(step=int(model.optimizer.iterations.numpy()))
    config = str(directory / "config.toml") if with_config else None
    path = exporting.export(directory / source, tmp_path / "1", config)
    expected = model.predict_on_batch(inputs)
    np.testing.assert_allclose(served(path, inputs), expected, atol=1e-6)


def test_a_model_has_the_name_that_its_config_gives(run):
    _, directory, _ = run
    config = TrainConfig.load(directory / "config.toml", ["model.name=dcn_v2"])
    for _ in range(2):
        assert build_model(config, open_log(config)).name == "dcn_v2"


def test_the_command_exports(run, tmp_path, capsys):
    _, directory, _ = run
    path = tmp_path / "ads" / "1"
    words = ["--quantize", "int8", "--file-size", "1KB", "--examples", "30"]
    assert cli.main(["export", str(directory / "kept"), str(path), *words]) == 0
    assert capsys.readouterr().out == f"Written: {path}\n"
    assert read_manifest(path)["quantize"] == "int8"
    assert len(list((path / "variables").glob("variables.data-*"))) > 2
    with np.load(path / CHECKED_ROWS) as rows:
        assert rows["outputs/probability"].shape == (30, 1)


def test_the_command_exports_stores(run, tmp_path):
    model, directory, inputs = run
    words = ["--tables", "store", "--ram", "1KB", "--ssd", str(tmp_path / "ssd")]
    path = tmp_path / "ads" / "1"
    assert cli.main(["export", str(directory / "kept"), str(path), *words]) == 0
    expected = model.predict_on_batch(inputs)
    np.testing.assert_allclose(served(path, inputs), expected, atol=1e-6)


def refused(message, *arguments, capsys):
    assert cli.main([str(argument) for argument in arguments]) == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_exported_is_refused(run, tmp_path, capsys):
    model, directory, _ = run
    checkpoints, kept = directory / "checkpoints", directory / "kept"
    path, options = tmp_path / "1", {"capsys": capsys}
    nowhere = tmp_path / "none"
    message = f"a checkpoint to export. Received: '{nowhere}', which does not exist."
    refused(message, "export", nowhere, path, **options)
    message = f"'{checkpoints}' does not say by what config it was trained, which names"
    refused(f"{message} the model.", "export", checkpoints, path, **options)
    lone = tmp_path / "lone.keras"
    lone.write_bytes((kept / "model.keras").read_bytes())
    message = f"'{lone}' does not say by what config it was trained, which names the"
    refused(f"{message} data.", "export", lone, path, "--examples", "3", **options)
    message = "not negative. Received: num_examples=-1."
    refused(message, "export", kept, path, "--examples", "-1", **options)
    config = ["--config", directory / "config.toml"]
    message = f"or the directory of them. Received: '{tmp_path}', which is none."
    refused(message, "export", tmp_path, path, *config, **options)


def test_a_checkpoint_of_another_model_is_refused(run):
    _, directory, _ = run
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="other")
    message = "['vectors', 'weights']. Received: model 'other' with []. Build"
    with pytest.raises(ValueError, match=re.escape(message)):
        restore_weights(model, directory / "checkpoints")
