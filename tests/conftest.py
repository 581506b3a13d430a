"""What every test starts from: fixed seeds, a quiet TensorFlow, known hardware."""

import os
import pathlib

# Read when the frameworks are imported.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent

tf.get_logger().setLevel("ERROR")


def pytest_collection_modifyitems(items):
    if tf.config.list_physical_devices("GPU"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="this machine has no GPU"))


@pytest.fixture(autouse=True)
def _fixed_seeds():
    keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def data_dir():
    """The folder of the public data sets, which are no part of the repository."""
    asked = os.environ.get("TFCTR_DATA")
    path = pathlib.Path(asked) if asked else ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(
            f"there is no folder {path}. Set TFCTR_DATA to the folder that holds the "
            "data sets, each in a folder of its own, such as ml-1m."
        )
    return path
