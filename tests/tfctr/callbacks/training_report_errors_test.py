"""What `TrainingReport` refuses before the training, and what does not end it."""

import importlib
import re
import shutil

import keras
import numpy as np
import pytest

from tfctr.callbacks import TrainingReport, training_report
from tfctr.report import scalars


def test_a_directory_that_goes_away_does_not_end_the_training(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    report = TrainingReport(tmp_path / "run", every=1, page=False, tensorboard=False)
    (tmp_path / "run" / "events.jsonl").unlink()
    (tmp_path / "run").rmdir()
    message = re.escape(f"'{tmp_path}/run' cannot be written to any more")
    with pytest.warns(UserWarning, match=message) as caught:
        model.fit(np.zeros((8, 1)), np.zeros((8, 1)), 2, verbose=0, callbacks=[report])
    assert len(caught) == 1


def test_a_file_in_the_place_of_the_directory_does_not_end_the_training(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(scalars, "has_tensorboard", lambda: True)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    report = TrainingReport(tmp_path / "run", every=1, page=False, tensorboard=True)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("")
    message = re.escape(f"'{tmp_path}/run' cannot be written to any more (Scalars for")
    with pytest.warns(UserWarning, match=message) as caught:
        model.fit(np.zeros((8, 1)), np.zeros((8, 1)), 2, verbose=0, callbacks=[report])
    assert len(caught) == 1
    assert int(model.optimizer.iterations) == 4


def test_every_must_be_positive(tmp_path):
    for every in (0, "3", 2.5, True):
        message = re.escape(f"must be a positive integer. Received: every={every!r}.")
        with pytest.raises(ValueError, match=message):
            TrainingReport(tmp_path, every=every)
    assert TrainingReport(tmp_path, np.int64(3), False, False).every == 3


def test_a_directory_must_be_writable_before_the_training(tmp_path):
    (tmp_path / "file").write_text("")
    directory = tmp_path / "file" / "run"
    message = f"Received: directory='{directory}' (Not a directory)."
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainingReport(directory)


def test_without_matplotlib_there_is_no_page(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"pip install matplotlib"):
        TrainingReport(tmp_path)
    TrainingReport(tmp_path, page=False)


def test_without_tensorboard_there_are_no_scalars(tmp_path, monkeypatch):
    monkeypatch.setattr(scalars, "has_tensorboard", lambda: False)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        TrainingReport(tmp_path, page=False, tensorboard=True)
    monkeypatch.setattr(training_report, "has_tensorboard", lambda: False)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    report = TrainingReport(tmp_path, page=False)
    model.fit(np.zeros((8, 1)), np.zeros((8, 1)), verbose=0, callbacks=[report])
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]
