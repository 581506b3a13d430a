"""Tables as TFRA names them in checkpoints and SavedModels, written without TFRA."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr.migration import import_tfra
from tfctr.migration.tfra_files import TfraFiles
from tfctr_ops import read_info

FTRL = {
    "ads": {1: [1, 2], -5: [3, 4], 2**40: [5, 6]},
    "ads_ftrl_shadow_accumulator": {1: [11, 12], -5: [13, 14], 2**40: [15, 16]},
    "ads_ftrl_shadow_linear": {1: [21, 22], -5: [23, 24], 2**40: [25, 26]},
}


def make_table(rows, key_dtype=tf.int64, value_dtype=tf.float32):
    """A table of TensorFlow, whose rows are saved as those of TFRA's tables are."""
    keys = tf.constant(list(rows), key_dtype)
    values = tf.constant(list(rows.values()), value_dtype)
    default = tf.zeros(values.shape[1:], value_dtype)
    table = tf.lookup.experimental.MutableHashTable(key_dtype, value_dtype, default)
    table.insert(keys, values)
    return table


def save(form, path, shards, steps=7):
    """Saves a model that has tables, in shards, and returns where it lies."""
    model = tf.Module()
    model.iterations = tf.Variable(steps, dtype=tf.int64)
    model.layer = tf.Module()
    for name, tables in shards.items():
        setattr(model.layer, f"tables_of_{name}", tables)
    if form == "SavedModel":
        tf.saved_model.save(model, str(path))
        return path
    return tf.train.Checkpoint(model=model).save(str(path / "checkpoint"))


@pytest.mark.parametrize("form", ["checkpoint", "SavedModel"])
def test_shards_with_their_slots_and_steps_are_read(form, tmp_path):
    shards = {}
    for name, rows in FTRL.items():
        some = {key: row for key, row in rows.items() if key == 1}
        others = {key: row for key, row in rows.items() if key != 1}
        shards[name] = [make_table(some), make_table(others)]
    source = save(form, tmp_path / "saved", shards)
    (report,) = import_tfra(source, tmp_path / "out", {"ads": "ads/ad"}, 2, "ftrl")
    assert (report.rows, report.rows_without_slots) == (3, 0)
    assert read_info(str(tmp_path / "out" / "0")).step == 7

    table = TableConfig("ads", 2, keras.optimizers.Ftrl(0.1))
    layer = DynamicEmbedding(FeatureConfig(table, namespace="ad"))
    layer.build((None,))
    layer.restore_snapshot(tmp_path / "out")
    rows = layer.tables["ads"].save_rows()
    ids, values = rows.ids.numpy().tolist(), rows.values.numpy().tolist()
    assert dict(zip(ids, values, strict=True)) == {
        key: [value for table in FTRL.values() for value in table[key]]
        for key in FTRL["ads"]
    }


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            lambda: make_table({"a": [1.0, 1.0]}, key_dtype=tf.string),
            "table 'ads' of object keys and float32 values. Leave it out.",
        ),
        (
            lambda: make_table({1: [1, 1]}, value_dtype=tf.int32),
            "table 'ads' of int64 keys and int32 values. Leave it out.",
        ),
        (
            lambda: make_table({1: [1, 1, 1]}),
            "of dim=2. Received: rows of dim=3. Say the width of the table, --dim.",
        ),
    ],
    ids=["keys", "values", "width"],
)
def test_tensors_of_other_dtypes_and_widths_are_refused(table, message, tmp_path):
    files = TfraFiles(save("checkpoint", tmp_path, {"ads": [table()]}))
    with pytest.raises(ValueError, match=message):
        files.read("ads", dim=2)


def test_names_are_those_of_the_tables(tmp_path):
    shards = {"user-parameter": [make_table({1: [1, 1]})]}
    files = TfraFiles(save("checkpoint", tmp_path, shards))
    assert files.names == ["user-parameter"]
    keys, values = files.read("user-parameter", dim=2)
    np.testing.assert_array_equal(keys, [1])
    np.testing.assert_array_equal(values, [[1, 1]])
