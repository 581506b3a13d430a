"""The optimizers for tables alone: their formulas, through a layer."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr.optimizers import RowwiseAdagrad, RowwiseAdam
from tfctr_ops import SparseOptimizer

DIM = 3
OPTIMIZERS = {
    RowwiseAdagrad: RowwiseAdagrad(0.5, initial_accumulator_value=0.2, epsilon=0.01),
    RowwiseAdam: RowwiseAdam(0.1, 0.8, 0.9, 0.01, weight_decay=0.05),
}


@pytest.fixture(params=OPTIMIZERS, ids=lambda kind: kind.__name__)
def optimizer(request):
    return OPTIMIZERS[request.param]


def layer_with(optimizer):
    table = TableConfig("ads", DIM, optimizer, initializer="ones")
    return DynamicEmbedding(FeatureConfig(table))


def step(layer, id, gradient):
    """Moves the row of one id by a gradient of our choice, and returns it."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([id]), training=True) * gradient)
    tape.gradient(loss, layer.trainable_variables)
    return layer.read_rows([id]).numpy()[0]


def gradients(count):
    return np.random.default_rng(1).normal(size=(count, DIM)).astype("float32")


def test_rowwise_adagrad_is_its_formula():
    layer = layer_with(OPTIMIZERS[RowwiseAdagrad])
    w, a = np.ones(DIM), 0.2
    for g in gradients(4).astype(float):
        a += np.mean(g**2)
        w = w - 0.5 * g / np.sqrt(a + 0.01)
        np.testing.assert_allclose(step(layer, 7, g), w, rtol=1e-5)


def test_rowwise_adam_counts_the_updates_of_the_row():
    layer = layer_with(OPTIMIZERS[RowwiseAdam])
    for _ in range(5):
        step(layer, 8, np.ones(DIM))  # Another row's updates do not count.
    w, m, v = np.ones(DIM), np.zeros(DIM), np.zeros(DIM)
    for t, g in enumerate(gradients(4).astype(float), start=1):
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * g**2
        w = w - 0.1 * 0.05 * w
        rate = 0.1 * np.sqrt(1 - 0.9**t) / (1 - 0.8**t)  # As Keras corrects.
        w = w - rate * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(step(layer, 7, g), w, rtol=1e-5)


def first_step_of_a_late_row(optimizer):
    """How far the first step goes, after many of other rows."""
    layer = layer_with(optimizer)
    for _ in range(20):
        step(layer, 8, np.ones(DIM))
    return 1 - step(layer, 7, np.full(DIM, 5.0))


def test_the_first_step_of_a_late_row_is_one_learning_rate_long():
    found = first_step_of_a_late_row(RowwiseAdam(0.01, beta_1=0.5, beta_2=0.75))
    np.testing.assert_allclose(found, 0.01, rtol=1e-5)


def test_with_adam_of_keras_the_same_step_is_longer():
    # Towards (1 - beta_1) / sqrt(1 - beta_2) learning rates.
    adam = keras.optimizers.Adam(0.01, beta_1=0.5, beta_2=0.99)
    length = (0.5 / (1 - 0.5**21)) / np.sqrt(0.01 / (1 - 0.99**21))
    assert length > 2
    np.testing.assert_allclose(first_step_of_a_late_row(adam), 0.01 * length, rtol=1e-5)


def test_rowwise_adagrad_keeps_one_number_per_row():
    assert RowwiseAdagrad().sparse_optimizer().num_slot_floats(dim=64) == 1


def test_the_defaults_are_those_of_the_store(optimizer):
    kind, correction = {
        RowwiseAdagrad: ("rowwise_adagrad", "global"),
        RowwiseAdam: ("adam", "row"),
    }[type(optimizer)]
    found = type(optimizer)().sparse_optimizer()
    assert found == SparseOptimizer(kind, bias_correction=correction)


def test_comes_back_from_its_config(optimizer):
    config = keras.saving.serialize_keras_object(optimizer)
    assert config["registered_name"] == f"tfctr>{type(optimizer).__name__}"
    assert keras.saving.deserialize_keras_object(config) == optimizer


def test_training_goes_on_after_loading(optimizer, tmp_path):
    model = keras.Sequential([keras.Input((), dtype="int64"), layer_with(optimizer)])
    for g in gradients(3):
        step(model.layers[0], 7, g)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for g in gradients(5):
        found, expected = (step(m.layers[0], 7, g) for m in (loaded, model))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (RowwiseAdagrad(-1.0), "Received: learning_rate=-1.0."),
        (RowwiseAdagrad(epsilon=-2.0), "Received: epsilon=-2.0."),
        (RowwiseAdam(beta_1=1.0), "`beta_1` must lie in [0, 1). Received: beta_1=1.0."),
        (RowwiseAdam(weight_decay=-3.0), "Received: weight_decay=-3.0."),
    ],
)
def test_values_out_of_range_are_refused_by_the_table(optimizer, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TableConfig("ads", DIM, optimizer)
