"""What `save` leaves in the directory of a run, also where it fails."""

import contextlib
import os
import re
import resource

import keras
import pytest

from helpers.training_runs import TINY, config
from tfctr import training


@pytest.fixture
def trained(tmp_path):
    """A model, its config, and the directory where it was saved."""
    asked = config(TINY, tmp_path, "run.epochs=1")
    model, _ = training.train(asked)
    training.save(model, asked)
    return model, asked, tmp_path


@contextlib.contextmanager
def files_limited_to(num_bytes):
    """Lets no file grow larger, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def files_in(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_save_that_fails_leaves_what_was_there(trained):
    model, asked, directory = trained
    before = files_in(directory)
    assert len(before["model.keras"]) > 10_000
    message = (
        f"'{directory}/model.keras' must be written to its end. Received: File too "
        "large. Make room there, or set another run.directory; what an earlier run "
        "saved is as it was."
    )
    with files_limited_to(10_000), pytest.raises(OSError, match=re.escape(message)):
        training.save(model, asked)
    assert files_in(directory) == before


def test_tables_that_may_not_be_saved_leave_what_was_there(trained):
    model, asked, directory = trained
    before = files_in(directory)
    model.get_layer("vectors").save_limit = 1
    with pytest.raises(ValueError, match="save_limit"):
        training.save(model, asked)
    assert files_in(directory) == before


def test_a_model_takes_its_name_when_it_is_complete(trained, monkeypatch):
    model, asked, directory = trained
    before = files_in(directory)
    replace = os.replace

    def look_first(source, target):
        assert files_in(directory)[target.name] == before[target.name]
        if target.name == "model.keras":
            assert keras.models.load_model(source).name == model.name
        replace(source, target)

    monkeypatch.setattr(os, "replace", look_first)
    training.save(model, asked)
    assert files_in(directory).keys() == before.keys()
