"""Checks that hold for every layer. A new layer is one new line in LAYERS."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers.cross_network import CrossNetwork
from keras_layers.dot_interaction import DotInteraction
from keras_layers.dynamic_embedding import DynamicEmbedding
from keras_layers.factorization_machine import FactorizationMachine
from keras_layers.table_config import FeatureConfig, TableConfig

BATCH = 8


def floats(*shape):
    return np.random.default_rng(0).normal(size=(BATCH, *shape)).astype("float32")


def ids(*shape):
    return np.random.default_rng(0).integers(0, 5, size=(BATCH, *shape))


def table():
    return TableConfig("ads", dim=4, optimizer=keras.optimizers.Adagrad(0.01))


# One line per layer (and variant with weights of its own): how to construct it, and
# one batch of its inputs.
LAYERS = {
    "CrossNetwork_vector": (lambda: CrossNetwork(2), floats(6)),
    "CrossNetwork_matrix": (lambda: CrossNetwork(2, "matrix"), floats(6)),
    "CrossNetwork_low_rank": (lambda: CrossNetwork(2, "matrix", 3), floats(6)),
    "CrossNetwork_mixture": (lambda: CrossNetwork(2, "mixture", 3, 4), floats(6)),
    "DotInteraction": (lambda: DotInteraction(), floats(3, 4)),
    "DotInteraction_include_self": (lambda: DotInteraction(True), floats(3, 4)),
    "DynamicEmbedding": (lambda: DynamicEmbedding(table()), ids(3)),
    "DynamicEmbedding_bags": (
        lambda: DynamicEmbedding(table(), combiner="sum"),
        ids(3),
    ),
    "DynamicEmbedding_feature": (
        lambda: DynamicEmbedding(FeatureConfig(table())),
        ids(3),
    ),
    "FactorizationMachine": (lambda: FactorizationMachine(), floats(3, 4)),
}


@pytest.fixture(params=sorted(LAYERS))
def case(request):
    keras.utils.set_random_seed(0)
    construct, inputs = LAYERS[request.param]
    return construct(), inputs


def model_around(layer, x):
    inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
    hidden = keras.layers.Flatten()(layer(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def test_config_round_trip(case):
    layer, _ = case
    config = layer.get_config()
    assert type(layer).from_config(config).get_config() == config


def test_declared_shape_and_dtype_are_the_real_ones(case):
    layer, x = case
    declared = layer(keras.Input(batch_shape=x.shape, dtype=x.dtype.name))
    real = layer(x)
    assert layer.compute_output_shape(x.shape) == tuple(real.shape)
    assert declared.shape == tuple(real.shape)
    assert declared.dtype == real.dtype.name


def test_saved_model_predicts_the_same(case, tmp_path):
    layer, x = case
    model = model_around(layer, x)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0)
    )


def test_batch_size_may_be_unknown(case):
    layer, x = case
    declared = layer(keras.Input(x.shape[1:], dtype=x.dtype.name))
    run = tf.function(
        layer, input_signature=[tf.TensorSpec((None, *x.shape[1:]), x.dtype)]
    )
    traced = run.get_concrete_function().output_shapes
    assert declared.shape[0] is None
    assert traced.as_list() == list(declared.shape)
    for batch in (BATCH, 1):
        assert run(x[:batch]).shape == (batch, *declared.shape[1:])


def test_fit_lowers_the_loss(case):
    layer, x = case
    model = model_around(layer, x)
    model.compile(keras.optimizers.SGD(1e-3), "mean_squared_error")
    labels = np.random.default_rng(1).normal(size=(BATCH, 1)).astype("float32")
    history = model.fit(x, labels, epochs=5, batch_size=BATCH // 2, verbose=0)
    losses = history.history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
