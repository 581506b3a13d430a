"""Loads the native library once, or explains why it cannot be loaded."""

import functools
import pathlib
from typing import Any

import tensorflow as tf


def path() -> pathlib.Path:
    """Returns where the library for the running TensorFlow is expected.

    The C++ interface of TensorFlow changes with each minor version, so there is one
    library per minor version, and several may lie side by side.
    """
    minor = ".".join(tf.__version__.split(".")[:2])
    return pathlib.Path(__file__).with_name(f"_tfctr_ops-tf{minor}.so")


@functools.cache
def load() -> Any:
    """Returns the module of generated op wrappers.

    Raises:
        ImportError: If the library is missing or does not load.
    """
    return _load(path())


def _load(library: pathlib.Path) -> Any:
    if not library.exists():
        raise ImportError(
            f"The native library for TensorFlow {tf.__version__} is not built: "
            f"expected {library.name} in {library.parent}. Build it in this "
            "environment with `pip install --no-build-isolation .`, or install the "
            "tfctr wheel made for this TensorFlow."
        )
    try:
        return tf.load_op_library(str(library))
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"{library.name} does not load under TensorFlow {tf.__version__}. Rebuild "
            "it in this environment with `pip install --no-build-isolation .`. "
            f"The loader said: {error.message}"
        ) from error
