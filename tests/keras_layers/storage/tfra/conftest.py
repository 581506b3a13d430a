"""Tables of TFRA."""

import pytest

from helpers.table_steps import ADAM, DIM, SEEDS
from keras_layers import TableConfig, TieredStorage


@pytest.fixture
def open_table(tfra_storage):
    def open_table(storage=None, **options):
        options = {"optimizer": ADAM, **options}
        config = TableConfig("ads", dim=DIM, **options)
        return (storage or tfra_storage()).open(config, SEEDS)

    return open_table


@pytest.fixture
def pair(open_table):
    """A table here and in `TieredStorage`."""

    def pair(storage=None, **options):
        return open_table(storage, **options), open_table(TieredStorage(), **options)

    return pair
