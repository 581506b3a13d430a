"""`max_bytes`: the rows that were trained most stay."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr.export import saved_model
from tfctr.export.draft import MANIFEST
from tfctr.export.selection import Usage, is_among, most_used


def usage(counts, size):
    keys = np.stack([np.zeros(len(counts), np.int64), np.arange(len(counts))], 1)
    return Usage(keys, np.array(counts, np.int64), size)


def ids(keys):
    return keys[:, 1].tolist()


def test_rows_of_all_tables_compete_by_their_bytes():
    tables = {"wide": usage([9, 50, 1], 10), "narrow": usage([5, 2, 0], 2)}
    # Updates a byte: wide 0.9, 5, 0.1; narrow 2.5, 1, 0.
    keys, shares = most_used(tables, 14)
    assert {name: ids(kept) for name, kept in keys.items()} == {
        "wide": [1],
        "narrow": [0, 1],
    }
    assert shares == {"wide": 50 / 60, "narrow": 1.0}


@pytest.mark.parametrize("max_bytes, kept", [(0, []), (20, [0, 1]), (10**6, [0, 1, 2])])
def test_what_was_never_trained_covers_all(max_bytes, kept):
    keys, shares = most_used({"t": usage([0, 0, 0], 10)}, max_bytes)
    assert ids(keys["t"]) == kept and shares == {"t": 1.0}


def test_keys_are_pairs():
    keys = np.array([[0, 1], [1, 0], [1, 1], [-1, 2**62]])
    others = np.array([[1, 1], [0, 0], [-1, 2**62]])
    assert is_among(keys, others).tolist() == [False, False, True, True]
    assert is_among(keys[:0], others).tolist() == []
    assert is_among(keys, others[:0]).tolist() == [False] * 4


def test_an_export_keeps_what_was_trained_most(tmp_path):
    table = TableConfig("ads", 2, keras.optimizers.SGD(0.1), default_row=(3.0, 4.0))
    inputs = keras.Input((1,), dtype="int64", name="ids")
    layer = DynamicEmbedding(FeatureConfig(table), name="embedding")
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    for step in range(6):  # Id i is in 6 - i steps.
        batch = np.arange(6 - step)[:, np.newaxis]
        model.train_on_batch(batch, np.ones((6 - step, 1, 2)))
    # Of a row, 8 bytes of weights and 24 of the key.
    path = saved_model(model, tmp_path / "1", max_bytes=100)
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    asked = np.arange(6)[:, np.newaxis]
    [found] = served(ids=tf.constant(asked)).values()
    expected = model.predict_on_batch(asked)
    np.testing.assert_array_equal(found[:3], expected[:3])
    np.testing.assert_array_equal(found[3:], np.tile([3.0, 4.0], (3, 1, 1)))
    facts = json.loads((path / MANIFEST).read_text())
    assert facts["tables"] == {"embedding/ads": 3}
    assert facts["coverage"] == {"embedding/ads": (6 + 5 + 4) / 21}


def test_a_size_that_is_none_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="max_bytes.*Received: max_bytes='much'"):
        saved_model(model, tmp_path / "1", max_bytes="much")
