"""`frozen_tables`: lookups go elsewhere, and only within it."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig
from keras_layers.frozen_tables import are_frozen, frozen_tables


class Sevens:
    """Reads sevens, and keeps what it was asked for."""

    def __init__(self):
        self.asked = []

    def read(self, ids, features):
        self.asked.append((ids.numpy().tolist(), features.numpy().tolist()))
        return tf.fill([tf.size(ids), 2], 7.0)


@pytest.fixture
def layer():
    table = TableConfig("ads", 2, keras.optimizers.SGD(1.0), initializer="ones")
    layer = DynamicEmbedding(table)
    layer(np.array([[1, 2]]), training=True)
    return layer


@pytest.mark.parametrize("training", [None, False, True])
def test_lookups_read_what_stands_in(layer, training):
    sevens = Sevens()
    before = layer.stats()
    with frozen_tables({layer.tables["ads"]: sevens}):
        assert are_frozen()
        found = layer(np.array([[5, 6]]), training=training)
    np.testing.assert_array_equal(found, np.full((1, 2, 2), 7))
    assert sevens.asked == [([5, 6], [0, 1])]
    assert layer.stats() == before
    assert not are_frozen()
    np.testing.assert_array_equal(layer(np.array([[5, 6]]), training=False), 0)


def test_it_ends_with_an_error_too(layer):
    with pytest.raises(KeyError), frozen_tables({layer.tables["ads"]: Sevens()}):
        raise KeyError
    assert not are_frozen()


def test_another_table_is_refused(layer):
    message = "Received: a lookup in table 'ads' of another layer. Make the layer an"
    with frozen_tables({}), pytest.raises(ValueError, match=re.escape(message)):
        layer(np.array([[5, 6]]), training=False)
