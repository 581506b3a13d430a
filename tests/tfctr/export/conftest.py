"""Models to be exported, and what a request of them looks like."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from keras_layers.dynamic_embedding import layers_of

DIM = 4
DEFAULT = (1.0, -2.0, 3.0, 0.5)


def make_features():
    """One feature of each kind, in two tables of different widths."""
    adagrad = keras.optimizers.Adagrad(0.1)
    ads = TableConfig("ads", DIM, adagrad, default_row=DEFAULT)
    films = TableConfig("films", 3, adagrad)
    return {
        "columns": FeatureConfig(ads, per_column=True),
        "film": FeatureConfig(films, namespace="film"),
        "liked": FeatureConfig(films, combiner="mean", namespace="film"),
        "words": FeatureConfig(films, combiner="sqrtn", padding_id=""),
        "history": FeatureConfig(ads, padding_id=0),
    }


def make_inputs():
    return {
        "columns": keras.Input((2,), dtype="int64", name="columns"),
        "film": keras.Input((), dtype="int32", name="film"),
        "liked": keras.Input((None,), dtype="int64", ragged=True, name="liked"),
        "words": keras.Input((3,), dtype="string", name="words"),
        "history": keras.Input((4,), dtype="int64", name="history"),
        "price": keras.Input((), name="price"),
    }


class Head(keras.layers.Layer):
    """Joins all vectors, and the price."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dropout = keras.layers.Dropout(0.5)
        self.dense = keras.layers.Dense(1, "sigmoid")

    def call(self, vectors, price):
        flat = [
            keras.ops.reshape(vectors["columns"], (-1, 2 * DIM)),
            *(vectors[name] for name in ("film", "liked", "words")),
            keras.ops.reshape(vectors["history"], (-1, 4 * DIM)),
            keras.ops.expand_dims(price, 1),
        ]
        return self.dense(self.dropout(keras.ops.concatenate(flat, 1)))


class Subclass(keras.Model):
    """A model that does not say what its inputs are, nor knows whether it trains."""

    def __init__(self):
        super().__init__()
        self.parts = {"embedding": DynamicEmbedding(make_features())}
        self.head = Head()

    def call(self, inputs):
        ids = {name: part for name, part in inputs.items() if name != "price"}
        vectors = self.parts["embedding"](ids, training=False)
        return {"click": self.head(vectors, inputs["price"])}


def functional():
    inputs = make_inputs()
    ids = {name: part for name, part in inputs.items() if name != "price"}
    vectors = DynamicEmbedding(make_features(), name="embedding")(ids)
    click = Head(name="click")(vectors, inputs["price"])
    return keras.Model(inputs, click, name="clicks")


def make_batch(count, seed=0, largest=50):
    """A batch with an empty bag; of a larger `largest`, with ids never seen."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, count)
    lengths[0] = 0
    liked = rng.integers(-largest, largest, lengths.sum())
    return {
        "columns": tf.constant(rng.integers(-largest, largest, (count, 2)) * 2**56),
        "film": tf.constant(rng.integers(0, largest, count), tf.int32),
        "liked": tf.RaggedTensor.from_row_lengths(tf.constant(liked), lengths),
        "words": tf.constant(rng.choice(["", "a", "b", str(largest)], (count, 3))),
        "history": tf.constant(rng.integers(0, largest, (count, 4))),
        "price": tf.constant(rng.random(count, np.float32)),
    }


@pytest.fixture
def batch():
    return make_batch


def write_rows(model):
    """Gives the small ids of all features rows of their own."""
    rng = np.random.default_rng(1)
    [layer] = layers_of(model)
    ids = {
        "columns/0": np.arange(-50, 50) * 2**56,
        "columns/1": np.arange(-50, 50) * 2**56,
        "film": np.arange(-50, 50),
        "words": ["a", "b", "50"],
        "history": np.arange(0, 50),
    }
    for name, values in ids.items():
        dim = 3 if name in ("film", "words") else DIM
        layer.write_rows(values, rng.normal(size=(len(values), dim)), feature=name)


@pytest.fixture
def clicks():
    """A functional model of which some ids have rows."""
    model = functional()
    write_rows(model)
    return model


@pytest.fixture
def subclass():
    model = Subclass()
    model(make_batch(4))
    write_rows(model)
    return model
