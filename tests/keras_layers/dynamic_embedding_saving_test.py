"""What survives saving, to the bit."""

import pickle

import keras
import numpy as np
import pytest

from helpers.saved_models import (
    COLUMNS,
    MODELS,
    assert_equal_tables,
    data,
    embedding,
    fit,
    functional,
    layer_of,
)
from keras_layers import DynamicEmbedding


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(9)


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


def config_of(layer):
    return keras.saving.serialize_keras_object(layer)["config"]


def test_a_saved_model_comes_back_whole(make, tmp_path):
    model = make()
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert layer_of(model).stats()["ads"]["step"] == 2
    assert layer_of(model).size() > 4
    assert_equal_tables(layer_of(loaded), layer_of(model))
    assert config_of(layer_of(loaded)) == config_of(layer_of(model))
    ids, _ = data(2)
    ids = np.concatenate([ids, ids + 1])  # Known ones, and unknown ones.
    np.testing.assert_array_equal(
        loaded.predict(ids, verbose=0), model.predict(ids, verbose=0)
    )


def test_saved_weights_come_back_whole(make, tmp_path):
    model, other = make(), make()
    fit(model)
    fit(other, first=5)  # Its rows are to be replaced, not added to.
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    assert_equal_tables(layer_of(other), layer_of(model))
    ids, _ = data(2)
    np.testing.assert_array_equal(
        other.predict(ids, verbose=0), model.predict(ids, verbose=0)
    )


def test_weights_may_be_saved_in_shards(tmp_path):
    model, other = functional(), functional()
    fit(model)
    model.save_weights(tmp_path / "model.weights.json", max_shard_size=4e-7)
    assert len(list(tmp_path.glob("*.h5"))) > 1
    other.load_weights(tmp_path / "model.weights.json")
    assert_equal_tables(layer_of(other), layer_of(model))


def test_training_resumes_to_the_bit(make, tmp_path):
    model = make()
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    losses = [fit(m, 4, first=1, compile_it=False) for m in (model, loaded)]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert layer_of(loaded).stats()["ads"]["step"] == 6
    assert_equal_tables(layer_of(loaded), layer_of(model))


def test_training_resumes_from_weights_to_the_bit(tmp_path):
    config = embedding().get_config()
    model, other = (functional(DynamicEmbedding.from_config(config)) for _ in range(2))
    for one in (model, other):
        # Weights say nothing of the model's optimizer: one without state.
        one.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
    fit(model, compile_it=False)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    losses = [fit(m, 4, first=1, compile_it=False) for m in (model, other)]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert_equal_tables(layer_of(other), layer_of(model))


def test_a_layer_before_its_first_update_is_saved_too(tmp_path):
    model = functional()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    ids, _ = data(1)
    assert layer_of(loaded).size() == 0
    np.testing.assert_array_equal(
        layer_of(loaded)(ids, training=True), layer_of(model)(ids, training=True)
    )


def test_written_rows_are_saved(tmp_path):
    model = functional()
    layer_of(model).write_rows([7], [[4, 5, 6]], 1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    rows = layer_of(loaded).read_rows([7, 8], 1)
    np.testing.assert_array_equal(rows, [[4, 5, 6], [1, 2, 3]])


def test_a_layer_used_twice_has_one_table_when_it_comes_back(tmp_path):
    layer = embedding()
    left, right = (keras.Input((COLUMNS,), dtype="int64") for _ in range(2))
    flat = [keras.layers.Flatten()(layer(side)) for side in (left, right)]
    model = keras.Model([left, right], keras.layers.Dot(axes=-1)(flat))
    model.compile("sgd", "mean_squared_error")
    ids, labels = data(1)
    model.fit([ids, ids[::-1]], labels, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal_tables(layer_of(loaded), layer)
    loaded.fit([ids, ids[::-1]], labels, verbose=0)
    assert layer_of(loaded).stats()["ads"]["step"] == 2


def test_a_pickled_model_comes_back_whole():
    model = functional()
    fit(model)
    copy = pickle.loads(pickle.dumps(model))
    assert_equal_tables(layer_of(copy), layer_of(model))
    layer_of(copy).write_rows([0], [[9, 9, 9]], 0)
    assert np.all(layer_of(model).read_rows([0], 0) != 9)
