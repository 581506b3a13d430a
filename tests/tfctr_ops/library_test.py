"""`library`: one library for the running TensorFlow, or the reason why not."""

import re

import pytest
import tensorflow as tf

from tfctr_ops import library


def test_the_library_is_that_of_the_running_tensorflow():
    major, minor = tf.__version__.split(".")[:2]
    assert library.path().name == f"_tfctr_ops-tf{major}.{minor}.so"


def test_the_library_is_loaded_once():
    assert library.load() is library.load()
    assert callable(library.load().tfctr_embedding_store_lookup)


def test_a_missing_library_is_named_with_its_folder_and_the_remedy(tmp_path):
    message = (
        f"The native library for TensorFlow {tf.__version__} is not built: expected "
        f"_tfctr_ops-tf0.1.so in {tmp_path}. Build it in this environment with "
        "`pip install --no-build-isolation .`, or install the tfctr wheel made for "
        "this TensorFlow."
    )
    with pytest.raises(ImportError, match=re.escape(message)):
        library._load(tmp_path / "_tfctr_ops-tf0.1.so")


@pytest.mark.parametrize("content", [b"", b"no library" * 1000])
def test_a_library_that_does_not_load_quotes_the_loader(tmp_path, content):
    broken = tmp_path / "_tfctr_ops-tf0.1.so"
    broken.write_bytes(content)
    message = (
        f"_tfctr_ops-tf0.1.so does not load under TensorFlow {tf.__version__}. Rebuild "
        "it in this environment with `pip install --no-build-isolation .`. The loader "
        f"said: {broken}: "
    )
    # What the loader says is its own.
    with pytest.raises(ImportError, match=re.escape(message) + r"\w+"):
        library._load(broken)
