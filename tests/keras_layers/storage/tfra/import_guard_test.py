"""`import_tfra`: what it undoes, and what it says."""

import importlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from keras_layers.storage.tfra import import_guard

# In a process of its own: TFRA comes first, and the guard late.
LATE = """
import sys, warnings
import keras, numpy as np, tensorflow as tf
def draw():
    initializer = keras.initializers.HeNormal(seed=3)
    return initializer((4, 5)).numpy()
before = draw()
import keras_layers
assert "tensorflow_recommenders_addons" not in sys.modules
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow_recommenders_addons
try:
    draw()
    raise SystemExit("TFRA no longer replaces what the guard puts back")
except AttributeError:
    pass
from keras_layers.storage.tfra import import_tfra
de = import_tfra()
assert de is tensorflow_recommenders_addons.dynamic_embedding is import_tfra()
np.testing.assert_array_equal(draw(), before)
assert tf.TensorShape([2, None]).as_list() == [2, None]
try:
    tf.TensorShape(None).as_list()
    raise SystemExit("as_list of an unknown rank gave a list")
except ValueError:
    pass
# TFRA's own layers still look up.
assert de.keras.layers.Embedding(2)(tf.constant([1], tf.int64)).shape == (1, 2)
from keras_layers.storage.tfra.import_guard import warn_of_tfra_layers
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    inner = keras.Sequential([keras.layers.Dense(1), de.keras.layers.Embedding(2)])
    warn_of_tfra_layers(keras.Sequential([inner, keras.layers.Dense(1)]))
(warning,) = caught
assert "never trained in a Keras 3 model" in str(warning.message), warning
"""


def test_what_tfra_replaced_before_is_put_back(tfra_storage):
    process = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr


def test_nothing_of_tfra_is_left_in_keras_and_tensorflow(tfra_storage):
    import_guard.import_tfra()
    for method in (keras.initializers.VarianceScaling.__call__, tf.TensorShape.as_list):
        assert not method.__module__.startswith("tensorflow_recommenders_addons")


@pytest.fixture
def guard(monkeypatch):
    """The guard where all is well up to the import itself, whatever is installed."""
    versions = {import_guard.TFRA: "0.8.1"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(tf, "__version__", "2.16.2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    import_guard.import_tfra.cache_clear()
    yield versions
    import_guard.import_tfra.cache_clear()


def fails_with(error):
    def fail(name):
        raise error

    return fail


def assert_says(message):
    with pytest.raises(ImportError, match=re.escape(message)):
        import_guard.import_tfra()


def test_a_missing_package_is_named(guard, monkeypatch):
    error = importlib.metadata.PackageNotFoundError()
    monkeypatch.setattr(importlib.metadata, "version", fails_with(error))
    assert_says(
        "which holds the tables of TfraStorage, is not installed. Install with Python "
        "3.9 to 3.11: pip install tensorflow==2.16.2 "
        'tensorflow-recommenders-addons==0.8.1 "setuptools<81"'
    )


def test_another_version_is_refused(guard):
    guard[import_guard.TFRA] = "0.7.2"
    assert_says("works with tensorflow-recommenders-addons 0.8.1. Received: 0.7.2.")


def test_another_tensorflow_is_refused(guard, monkeypatch):
    monkeypatch.setattr(tf, "__version__", "2.21.0")
    assert_says("is built for TensorFlow 2.16. Received: TensorFlow 2.21.0. Install")


def test_a_setuptools_without_pkg_resources_is_named(guard, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert_says('from version 81 on. Install an older one: pip install "setuptools<81"')


def test_a_tensorflow_for_cpus_only_is_named(guard, monkeypatch):
    error = tf.errors.NotFoundError(
        None, None, "_math_ops.so: undefined symbol: __cudaUnregisterFatBinary"
    )
    monkeypatch.setattr(importlib, "import_module", fails_with(error))
    assert_says(
        "needs the full `tensorflow` package, also where there is no GPU: it does not "
        "load with `tensorflow-cpu`. Run: pip uninstall tensorflow-cpu && pip install "
        "tensorflow==2.16.2"
    )


def test_a_library_that_is_not_found_is_told_as_it_is(guard, monkeypatch):
    error = tf.errors.NotFoundError(None, None, "_math_ops.so: no such file")
    monkeypatch.setattr(importlib, "import_module", fails_with(error))
    with pytest.raises(tf.errors.NotFoundError, match="no such file"):
        import_guard.import_tfra()


def test_an_import_that_fails_otherwise_names_a_reason(guard, monkeypatch):
    error = ImportError("Keras cannot be imported")
    monkeypatch.setattr(importlib, "import_module", fails_with(error))
    assert_says(
        "is installed, but does not load: Keras cannot be imported. "
        "TF_USE_LEGACY_KERAS=1 without the package tf_keras is one reason"
    )


def test_what_was_replaced_before_an_error_is_put_back(guard, monkeypatch):
    original = keras.initializers.VarianceScaling.__call__

    def fail_late(name):
        keras.initializers.VarianceScaling.__call__ = None
        raise ImportError("too late")

    monkeypatch.setattr(importlib, "import_module", fail_late)
    assert_says("is installed, but does not load: too late.")
    assert keras.initializers.VarianceScaling.__call__ is original
