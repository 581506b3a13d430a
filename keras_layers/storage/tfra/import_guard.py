"""`import_tfra`: the one place where TensorFlow Recommenders Addons is imported.

The import replaces methods of Keras and TensorFlow for the whole process. The two that
strangers meet are put back; the others are paths of TensorFlow 1, or act on TFRA's own
objects.
"""

import ast
import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import textwrap
import warnings
from typing import Any

import keras
import tensorflow as tf

TFRA = "tensorflow-recommenders-addons"
TFRA_VERSION = "0.8.1"
TENSORFLOW_MINOR = "2.16"
_PACKAGE = "tensorflow_recommenders_addons"
_INSTALL = (
    f"Install with Python 3.9 to 3.11: pip install tensorflow=={TENSORFLOW_MINOR}.2 "
    f'{TFRA}=={TFRA_VERSION} "setuptools<81"'
)


@functools.cache
def import_tfra() -> Any:
    """Returns `tensorflow_recommenders_addons.dynamic_embedding`.

    Afterwards `keras.initializers.VarianceScaling` and `tf.TensorShape.as_list` are
    what they were, also if TFRA was imported before, by whomever.

    Raises:
        ImportError: If TFRA is missing or does not load; the message says what to
            install.
    """
    _check_versions()
    spots: tuple[tuple[Any, str], ...] = (
        (keras.initializers.VarianceScaling, "__call__"),
        (tf.TensorShape, "as_list"),
    )
    originals = [getattr(owner, name) for owner, name in spots]
    try:
        return _load()
    finally:
        # Also after an error: by then some of it may have been replaced.
        for (owner, name), original in zip(spots, originals, strict=True):
            if original.__module__.partition(".")[0] == _PACKAGE:
                original = _compile_method(owner, name)
            setattr(owner, name, original)


def warn_of_tfra_layers(model: Any) -> None:
    """Warns of TFRA's own layers in a Keras 3 model: they never train.

    Args:
        model: Keras model, or layer.
    """
    for layer in getattr(model, "layers", ()):
        warn_of_tfra_layers(layer)
        if type(layer).__module__.partition(".")[0] == _PACKAGE:
            warnings.warn(
                f"Layer '{layer.name}' is TFRA's {type(layer).__name__}, whose table "
                "is never trained in a Keras 3 model, and no error says so. Use "
                "keras_layers.DynamicEmbedding(table, storage=TfraStorage()).",
                stacklevel=3,
            )


def _check_versions() -> None:
    try:
        found = importlib.metadata.version(TFRA)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            "TensorFlow Recommenders Addons, which holds the tables of TfraStorage, is "
            f"not installed. {_INSTALL}"
        ) from None
    if found != TFRA_VERSION:
        raise ImportError(
            f"tfctr works with {TFRA} {TFRA_VERSION}. Received: {found}. {_INSTALL}"
        )
    if tf.__version__.rpartition(".")[0] != TENSORFLOW_MINOR:
        raise ImportError(
            f"{TFRA} {TFRA_VERSION} is built for TensorFlow {TENSORFLOW_MINOR}. "
            f"Received: TensorFlow {tf.__version__}. {_INSTALL}"
        )
    if importlib.util.find_spec("pkg_resources") is None:
        raise ImportError(
            f"{TFRA} imports `pkg_resources`, which setuptools has no more from "
            'version 81 on. Install an older one: pip install "setuptools<81"'
        )


def _load() -> Any:
    log, level = tf.get_logger(), tf.get_logger().level
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            # Of TFRA about itself; users can do nothing about it.
            warnings.simplefilter("ignore")
            log.setLevel("ERROR")
            return importlib.import_module(f"{_PACKAGE}.dynamic_embedding")
    except tf.errors.NotFoundError as error:
        if "undefined symbol" not in error.message:
            raise
        raise ImportError(
            f"{TFRA} needs the full `tensorflow` package, also where there is no GPU: "
            "it does not load with `tensorflow-cpu`. Run: pip uninstall tensorflow-cpu "
            f"&& pip install tensorflow=={TENSORFLOW_MINOR}.2\n({error.message})"
        ) from error
    except ImportError as error:
        raise ImportError(
            f"{TFRA} {TFRA_VERSION} is installed, but does not load: {error}. "
            "TF_USE_LEGACY_KERAS=1 without the package tf_keras is one reason: leave "
            f"it out. Otherwise: {_INSTALL}"
        ) from error
    finally:
        log.setLevel(level)


def _compile_method(owner: type, name: str) -> Any:
    """Returns a method as the source of its class has it.

    The module is not executed again: that would register its classes a second time.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    (definition,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    path = inspect.getsourcefile(owner) or "<unknown>"
    code = compile(ast.Module([definition], []), path, "exec")
    namespace: dict[str, Any] = {}
    exec(code, vars(sys.modules[owner.__module__]), namespace)
    return namespace[name]
