"""Runs of `train` that take a moment."""

import keras

from tfctr import training
from tfctr.config import TrainConfig

TINY = {
    "data": {"num_examples": 500, "fields": 2, "ids_per_field": 20},
    "model": {"dim": 2, "hidden_units": [4]},
    "run": {"epochs": 2, "batch_size": 64},
}


def config(sections, directory, *overrides):
    return TrainConfig.from_dict(sections, [f"run.directory={directory}", *overrides])


def train(sections, directory, *overrides):
    """Trains and saves; returns the result."""
    asked = config(sections, directory, *overrides)
    model, result = training.train(asked)
    assert training.save(model, asked) == directory / "model.keras"
    return result


def load(directory):
    return keras.models.load_model(directory / "model.keras")
