"""What tests of saved models share, in tests/keras_layers/saved_models.py."""

import importlib.util
import pathlib
import sys

PATH = pathlib.Path(__file__).with_name("saved_models.py")
SPEC = importlib.util.spec_from_file_location("saved_models", PATH)
saved_models = sys.modules["saved_models"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(saved_models)
