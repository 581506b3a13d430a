"""Checks that hold for every model. A new model is one new line in MODELS."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, TieredStorage
from tfctr.models import (
    DCN,
    DLRM,
    DCNv2,
    DeepFM,
    DynamicTables,
    StaticTables,
    WideDeep,
)
from tfctr.optimizers import RowwiseAdagrad, RowwiseAdam
from tfctr_ops import SparseOptimizer

COUNT = 32


def static_tables():
    # Without some of the ids: those share one vector.
    ids = np.arange(-3, 3) * 2**60
    vocabularies = {"user": [1, 2, 3], "ids": ids, "tags": np.array(["a", "b"])}
    return StaticTables(vocabularies, keras.initializers.RandomNormal(0, 0.1))


# One line per way to get vectors; one model is tried with each.
VECTORS = {
    "static": static_tables,
    "keras_optimizer": lambda: DynamicTables(keras.optimizers.Adam(0.02)),
    "named_optimizer": lambda: DynamicTables("adagrad"),
    "rowwise_adagrad": lambda: DynamicTables(RowwiseAdagrad(0.1)),
    "rowwise_adam": lambda: DynamicTables(RowwiseAdam(0.02)),
    "sparse_optimizer": lambda: DynamicTables(SparseOptimizer("ftrl", 0.1)),
    "storage": lambda: DynamicTables(
        keras.optimizers.SGD(0.1),
        TieredStorage("1MB", eviction_policy="clock"),
        "random_normal",
        3,
        keras.optimizers.Adagrad(0.1),
    ),
}
SIZES = {"dim": 4, "hidden_units": (8, 4)}
# One line per model: its class, and the arguments beside features and vectors.
MODELS = {
    "WideDeep": (WideDeep, SIZES),
    "DeepFM": (DeepFM, SIZES),
    "DCN": (DCN, {**SIZES, "num_cross_layers": 2}),
    "DCNv2": (DCNv2, {**SIZES, "num_cross_layers": 1, "num_experts": 2, "rank": 3}),
    "DLRM": (DLRM, {**SIZES, "bottom_units": (6,)}),
}
EVERY_MODEL = pytest.mark.parametrize("kind", MODELS)
# Every model, and every way to get vectors.
EVERY_PAIR = pytest.mark.parametrize(
    "kind, vectors",
    [
        *((kind, "keras_optimizer") for kind in MODELS if kind != "DeepFM"),
        *(("DeepFM", vectors) for vectors in VECTORS),
    ],
)
EITHER = pytest.mark.parametrize(
    "kind, vectors",
    [*((kind, "keras_optimizer") for kind in MODELS), ("DeepFM", "static")],
)


@pytest.fixture
def make(features):
    def make(kind, vectors="keras_optimizer"):
        network, arguments = MODELS[kind]
        model = network(features, VECTORS[vectors](), **arguments)
        adam = keras.optimizers.Adam(0.01)
        # Eagerly: tracing takes longer than these few steps. `training_test` traces.
        model.compile(adam, "binary_crossentropy", run_eagerly=True)
        return model

    return make


def fit(model, examples, epochs):
    data = tf.data.Dataset.from_tensor_slices(examples).batch(COUNT)
    history = model.fit(data, epochs=epochs, shuffle=False, verbose=0)
    return history.history["loss"]


def rows_of(model):
    """All rows of all tables, by feature and id."""
    return {
        (name, int(id)): row.tolist()
        for layer in model.layers
        if isinstance(layer, DynamicEmbedding)
        for name, ids, rows in layer.export(1000)
        for id, row in zip(ids, rows, strict=True)
    }


@EVERY_PAIR
def test_trains_saves_and_goes_on_as_if_never_saved(
    make, kind, vectors, examples, tmp_path
):
    model = make(kind, vectors)
    losses = fit(model, examples(COUNT), epochs=4)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    # Ids that were seen and ids that were not.
    for first in (0, 100):
        inputs, _ = examples(COUNT, first)
        np.testing.assert_array_equal(
            loaded(inputs, training=False), model(inputs, training=False)
        )
    assert rows_of(loaded) == rows_of(model)
    # New ids start from the same rows in both.
    more = examples(COUNT, 100)
    assert fit(loaded, more, epochs=2) == fit(model, more, epochs=2)
    assert rows_of(loaded) == rows_of(model)


@EVERY_PAIR
def test_config_round_trip(make, kind, vectors):
    model = make(kind, vectors)
    config = keras.saving.serialize_keras_object(model)
    text = json.dumps(config)
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert json.dumps(keras.saving.serialize_keras_object(again)) == text


@EITHER
def test_weights_go_into_a_model_from_the_config(
    make, kind, vectors, examples, tmp_path
):
    model = make(kind, vectors)
    fit(model, examples(COUNT), epochs=1)
    model.save_weights(tmp_path / "model.weights.h5")
    other = type(model).from_config(model.get_config())
    other.load_weights(tmp_path / "model.weights.h5")
    inputs, _ = examples(COUNT)
    np.testing.assert_array_equal(
        other(inputs, training=False), model(inputs, training=False)
    )


@EITHER
def test_a_clone_with_the_same_weights_predicts_the_same(make, kind, vectors, examples):
    model = make(kind, vectors)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for layer in [*model.layers, *clone.layers]:
        if isinstance(layer, DynamicEmbedding):
            rows = np.arange(3.0)[:, None] + np.ones(layer.features["tags"].table.dim)
            layer.write_rows(tf.constant(["a", "b", "c"]), rows, "tags")
    inputs, _ = examples(COUNT)
    found = clone.predict(inputs, batch_size=COUNT, verbose=0)
    np.testing.assert_allclose(found, model(inputs, training=False), rtol=1e-6)
    assert len(np.unique(found)) > COUNT // 2


@EITHER
def test_predicts_probabilities_for_any_batch_size(make, kind, vectors, examples):
    model = make(kind, vectors)
    inputs, _ = examples(COUNT)
    whole = model(inputs, training=False).numpy()
    assert whole.shape == (COUNT, 1)
    assert ((whole > 0) & (whole < 1)).all()
    one = {name: tensor[3:4] for name, tensor in inputs.items()}
    np.testing.assert_allclose(model(one, training=False), whole[3:4], rtol=1e-6)


@EVERY_MODEL
def test_evaluation_and_prediction_make_no_rows(make, kind, examples):
    model = make(kind)
    inputs, labels = examples(COUNT)
    model.evaluate(inputs, labels, verbose=0)
    model.predict(inputs, verbose=0)
    assert rows_of(model) == {}
