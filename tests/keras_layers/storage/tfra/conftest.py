"""Tables of TFRA, and what their tests share, in table_steps.py."""

import importlib.util
import pathlib
import sys

import pytest

from keras_layers import TableConfig, TieredStorage

PATH = pathlib.Path(__file__).with_name("table_steps.py")
SPEC = importlib.util.spec_from_file_location("table_steps", PATH)
tables = sys.modules["table_steps"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)


@pytest.fixture
def open_table(tfra_storage):
    def open_table(storage=None, **options):
        options = {"optimizer": tables.ADAM, **options}
        config = TableConfig("ads", dim=tables.DIM, **options)
        return (storage or tfra_storage()).open(config, tables.SEEDS)

    return open_table


@pytest.fixture
def pair(open_table):
    """A table here and in `TieredStorage`."""

    def pair(storage=None, **options):
        return open_table(storage, **options), open_table(TieredStorage(), **options)

    return pair
