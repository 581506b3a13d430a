"""`saved_model`: predicts as the model does, with TensorFlow's own ops alone."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr.export import saved_model
from tfctr.feature import Feature
from tfctr.models import DeepFM, StaticTables


def load(path, signature="serving_default"):
    loaded = tf.saved_model.load(str(path))
    # A signature alone does not keep its variables.
    return lambda **tensors: loaded.signatures[signature](**tensors)


def request(batch):
    """The tensors of `serving_default`, written out by hand."""
    liked = batch["liked"]
    return {
        **{name: part for name, part in batch.items() if name != "liked"},
        "liked": liked.values,
        "liked_row_splits": liked.row_splits,
    }


def serialized(batch):
    """The batch as `tf.train.Example`s."""

    def feature(values):
        values = np.ravel(values)
        if values.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        if values.dtype.kind in "iu":
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    count = batch["price"].shape[0]
    rows = [
        {name: feature(v[i].numpy()) for name, v in batch.items()} for i in range(count)
    ]
    return tf.constant(
        [
            tf.train.Example(
                features=tf.train.Features(feature=row)
            ).SerializeToString()
            for row in rows
        ]
    )


def ops_of(path):
    proto = (path / "saved_model.pb").read_bytes()
    return set(re.findall(rb"[A-Za-z0-9]+>[A-Za-z0-9]+", proto))


def test_it_predicts_as_the_model_does(clicks, batch, tmp_path):
    path = saved_model(clicks, tmp_path / "1")
    assert path == tmp_path / "1"
    # Half of the ids have no row.
    for count in (1, 64):
        inputs = batch(count, largest=100)
        expected = clicks.predict_on_batch(inputs)
        found = load(path)(**request(inputs))
        np.testing.assert_allclose(found["click"], expected, atol=1e-6)
    found = load(path, "serving_examples")(examples=serialized(inputs))
    np.testing.assert_allclose(found["click"], expected, atol=1e-6)
    assert ops_of(path) == set()


def test_a_subclass_is_exported_by_its_examples(subclass, batch, tmp_path):
    path = saved_model(subclass, tmp_path / "1", examples=batch(3))
    inputs = batch(5, seed=1, largest=100)
    expected = subclass(inputs)["click"]
    found = load(path)(**request(inputs))
    np.testing.assert_allclose(found["click"], expected, atol=1e-6)
    found = load(path, "serving_examples")(examples=serialized(inputs))
    np.testing.assert_allclose(found["click"], expected, atol=1e-6)


def sequential(storage=None, dim=2):
    table = TableConfig("ads", dim, keras.optimizers.SGD(1.0), initializer="ones")
    layer = DynamicEmbedding(table, storage=storage, name="ads")
    model = keras.Sequential([keras.Input((3,), dtype="int64", name="ids"), layer])
    layer.write_rows([1, 2, 3], np.arange(3 * dim).reshape(3, dim), feature=1)
    return model


IDS = [[1, 1, 1], [2, 3, 9]]


def test_a_table_on_disk_is_exported_whole(tmp_path):
    storage = TieredStorage(ram="1KB", ssd=tmp_path / "ssd")
    model = sequential(storage)
    ids = np.arange(500)
    rows = np.random.default_rng(0).random((500, 2))
    model.layers[0].write_rows(ids, rows, feature=0)
    served = load(saved_model(model, tmp_path / "1"))
    asked = tf.constant(np.stack([ids, ids, ids], 1))
    [found] = served(ids=asked).values()
    np.testing.assert_allclose(found[:, 0], rows, rtol=1e-6)
    np.testing.assert_array_equal(found[1:4, 1], [[0, 1], [2, 3], [4, 5]])
    assert not np.any(found[:, 2])


def test_training_goes_on_and_the_export_stays(tmp_path):
    model = sequential()
    served = load(saved_model(model, tmp_path / "1"))
    before = model(np.array(IDS))
    model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True)
    model.train_on_batch(np.array(IDS), np.zeros((2, 3, 2)))
    assert np.any(model(np.array(IDS)) != before)
    [found] = served(ids=tf.constant(IDS, tf.int64)).values()
    np.testing.assert_array_equal(found, before)


def test_rows_of_several_files_are_read(tmp_path):
    path = saved_model(sequential(dim=64), tmp_path / "1", file_size=600)
    assert len(list((path / "variables").glob("variables.data-*"))) > 2
    [found] = load(path)(ids=tf.constant([[0, 2, 0]], tf.int64)).values()
    np.testing.assert_array_equal(found[0, 1], np.arange(64, 128))


@pytest.mark.parametrize("quantize, error", [("float16", 2e-3), ("int8", 2e-2)])
def test_quantized_rows_are_close(clicks, batch, tmp_path, quantize, error):
    path = saved_model(clicks, tmp_path / "1", quantize=quantize)
    inputs = batch(64, largest=100)
    difference = load(path)(**request(inputs))["click"] - clicks.predict_on_batch(
        inputs
    )
    assert 0 < np.abs(difference).max() < error


def test_vocabularies_of_other_layers_come_along(tmp_path):
    features = [Feature("word", "string"), Feature("user", "int64")]
    ids = {"word": ["a", "b"], "user": [5, 7]}
    model = DeepFM(features, StaticTables(ids), dim=2, hidden_units=[3])
    served = load(saved_model(model, tmp_path / "1"))
    inputs = {
        "word": tf.constant(["a", "b", "zz"]),
        "user": tf.constant([5, 8, 7], tf.int64),
    }
    expected = model.predict_on_batch(inputs)
    np.testing.assert_allclose(served(**inputs)["probability"], expected, atol=1e-6)


def several_outputs(inputs, outputs):
    x = keras.Input((2,), name="x")
    y = keras.Input((2,), name="y")
    both = {"list": [y, x], "dict": {"y": y, "x": x}}[inputs]
    left = keras.layers.Identity(name="left")(x)
    right = keras.layers.Identity(name="right")(y)
    named = {"list": [left, right], "dict": {"l": left, "r": right}}[outputs]
    return keras.Model(both, named)


@pytest.mark.parametrize(
    "inputs, outputs, names",
    [
        ("list", "list", ("x", "y", "left", "right")),
        ("dict", "dict", ("x", "y", "l", "r")),
    ],
)
def test_tensors_have_the_names_of_the_model(tmp_path, inputs, outputs, names):
    model = several_outputs(inputs, outputs)
    served = load(saved_model(model, tmp_path / "1"))
    x, y, left, right = names
    found = served(**{x: tf.constant([[1.0, 2.0]]), y: tf.constant([[3.0, 4.0]])})
    assert sorted(found) == sorted([left, right])
    np.testing.assert_array_equal(found[left], [[1.0, 2.0]])
    np.testing.assert_array_equal(found[right], [[3.0, 4.0]])


def test_without_a_width_there_is_no_signature_of_examples(tmp_path):
    table = TableConfig("ads", 2, keras.optimizers.SGD(1.0))
    ids = keras.Input((None,), dtype="int64", name="ids")
    model = keras.Model(ids, DynamicEmbedding(FeatureConfig(table))(ids))
    path = saved_model(model, tmp_path / "1")
    assert list(tf.saved_model.load(str(path)).signatures) == ["serving_default"]


# What is refused.


def refused(message, *arguments, error=ValueError, **options):
    with pytest.raises(error, match=re.escape(message)):
        saved_model(*arguments, **options)


def test_wrong_options_are_refused(tmp_path):
    model = sequential()
    path = tmp_path / "1"
    refused("or 'store'. Received: tables='hash'.", model, path, tables="hash")
    refused(
        "one of 'float16', 'int8'. Received: quantize='int4'",
        model,
        path,
        quantize="int4",
    )
    refused("file_size", model, path, file_size="big")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_directory_is_refused(tmp_path):
    refused(f"Received: '{tmp_path}', which exists.", sequential(), tmp_path)


def test_a_model_without_weights_is_refused(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)], name="empty")
    refused("Model 'empty' must be built before it is exported.", model, tmp_path / "1")


def test_a_subclass_without_examples_is_refused(subclass, tmp_path):
    message = "does not say what its inputs are. Received: examples=None. Show a batch"
    refused(message, subclass, tmp_path / "1")


def test_examples_that_do_not_fit_are_refused(clicks, tmp_path):
    message = (
        "['columns', 'film', 'history', 'liked', 'price', 'words']. Received: {'film'"
    )
    refused(message, clicks, tmp_path / "1", examples={"film": np.array([1])})


def test_dense_examples_of_a_ragged_input_are_refused(clicks, batch, tmp_path):
    inputs = batch(3)
    message = "a ragged tensor for input 'liked'. Received: EagerTensor."
    dense = {**inputs, "liked": inputs["liked"].to_tensor()}
    refused(message, clicks, tmp_path / "1", examples=dense)
    message = "a dense tensor for input 'film'. Received: RaggedTensor."
    ragged = {**inputs, "film": inputs["liked"]}
    refused(message, clicks, tmp_path / "1", examples=ragged)


def test_inputs_in_a_dict_of_lists_have_names_of_their_own(tmp_path):
    a, b, c = (keras.Input((1,), name=name) for name in "abc")
    joined = keras.layers.Concatenate(name="y")([a, b, c])
    model = keras.Model({"pair": [a, b], "c": c}, joined)
    served = load(saved_model(model, tmp_path / "1"))
    found = served(**{name: tf.fill([1, 1], ord(name) * 1.0) for name in "abc"})["y"]
    np.testing.assert_array_equal(found, [[97.0, 98.0, 99.0]])


@pytest.mark.parametrize("name", ["user id", "1st", "self", "class", "_x", "größe"])
def test_names_that_tensorflow_would_change_are_refused(tmp_path, name):
    x = keras.Input((2,), name=name)
    message = f"such as 'user_id'. Received: '{name}'. Rename the input"
    refused(message, keras.Model(x, keras.layers.Dense(1)(x)), tmp_path / "1")


class Twins(keras.Model):
    def __init__(self):
        super().__init__()
        self.twins = [sequential().layers[0] for _ in range(2)]

    def call(self, inputs):
        return sum(layer(inputs, training=False) for layer in self.twins)


def test_layers_of_one_name_are_refused(tmp_path):
    model = Twins()
    model(np.array(IDS))
    message = "Received: layers ['ads', 'ads'] of model 'twins'. Name them apart"
    refused(message, model, tmp_path / "1", examples=np.array(IDS))


def test_names_that_clash_are_refused(tmp_path):
    tags = keras.Input((None,), dtype="int64", ragged=True, name="tags")
    other = keras.Input((), dtype="int64", name="tags_row_splits")
    model = keras.Model([tags, other], other)
    message = (
        "NAME_row_splits. Received: ['tags', 'tags_row_splits', 'tags_row_splits']"
    )
    refused(message, model, tmp_path / "1")


class Rounds(keras.layers.Layer):
    def call(self, inputs):
        return tf.ensure_shape(
            tf.py_function(np.round, [inputs], tf.float32), [None, 2]
        )


def test_ops_in_python_are_refused(tmp_path):
    model = keras.Sequential([keras.Input((2,)), Rounds()], name="rounds")
    message = "Model 'rounds' is exported for servers that know the ops of TensorFlow "
    refused(message, model, tmp_path / "1")
    refused("predicts with ['EagerPyFunc']. Of a tf.function", model, tmp_path / "1")


class Hides(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.get = lambda: layer
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(self.get()(inputs, training=False))


def test_a_layer_that_no_one_tracks_is_refused(tmp_path):
    model = Hides(sequential().layers[0])
    model(np.array(IDS))
    message = "Received: a lookup in table 'ads' of another layer. Make the layer"
    refused(message, model, tmp_path / "1", examples=np.array(IDS))


def test_nothing_is_left_of_an_export_that_fails(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    refused("No space left", sequential(), tmp_path / "1", error=OSError)
    assert list(tmp_path.iterdir()) == []
