"""Models with tables, to be saved in every way: how they train, and what is in them."""

import keras
import numpy as np
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig, TieredStorage
from tfctr_ops import SparseOptimizer

DIM, COLUMNS = 3, 2
SGD = SparseOptimizer("sgd", learning_rate=0.5)


def adam():
    schedule = keras.optimizers.schedules.InverseTimeDecay(0.1, 2, 1.0)
    return keras.optimizers.Adam(schedule, beta_1=0.8, name="adam")


def table(name="ads", dim=DIM, **options):
    return TableConfig(name, dim=dim, **{"optimizer": SGD, **options})


def embedding(**options):
    # With a seed: a subclassed model makes its layers anew when it is loaded.
    ads = table(
        optimizer=adam(), initializer="random_normal", default_row=[1, 2, 3], seed=4
    )
    return DynamicEmbedding(ads, TieredStorage("8MB"), name="embedding", **options)


def functional(layer=None):
    inputs = keras.Input((COLUMNS,), dtype="int64")
    hidden = keras.layers.Flatten()((layer or embedding())(inputs))
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(hidden))


def sequential():
    layers = [embedding(), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((COLUMNS,), dtype="int64"), *layers])


def nested():
    inputs = keras.Input((COLUMNS,), dtype="int64")
    inner = keras.Model(inputs, embedding()(inputs), name="inner")
    outer = keras.Input((COLUMNS,), dtype="int64")
    hidden = keras.layers.Flatten()(inner(outer))
    return keras.Model(outer, keras.layers.Dense(1)(hidden))


@keras.saving.register_keras_serializable(package="tfctr_test")
class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.embedding, self.head = embedding(), keras.layers.Dense(1)

    def build(self, input_shape):
        self.embedding.build(input_shape)
        self.head.build((None, COLUMNS * DIM))

    def call(self, inputs, training=None):
        vectors = self.embedding(inputs, training=training)
        return self.head(tf.reshape(vectors, [-1, COLUMNS * DIM]))


def subclassed():
    model = Subclassed()
    model.build((None, COLUMNS))
    return model


MODELS = {
    "functional": functional,
    "sequential": sequential,
    "nested": nested,
    "subclassed": subclassed,
}


def layers_of(model):
    """The embedding layers, wherever they are."""
    return [x for x in model._flatten_layers() if isinstance(x, DynamicEmbedding)]


def layer_of(model):
    (layer,) = layers_of(model)
    return layer


def data(steps, first=0):
    rng = np.random.default_rng(first)
    ids = rng.integers(-3, 3, size=(4 * steps, COLUMNS)) * 2**60
    return ids, rng.normal(size=(len(ids), 1)).astype("float32")


def fit(model, steps=2, first=0, compile_it=True):
    if compile_it:
        model.compile(keras.optimizers.Adam(0.1), "mean_squared_error")
    model.run_eagerly = True  # Traces nothing: faster for so few steps.
    history = model.fit(*data(steps, first), batch_size=4, shuffle=False, verbose=0)
    return history.history["loss"]


def tables(layer):
    """Rows, slots and counters of every table, by key, and its step."""
    found = []
    for live in layer.tables.values():
        rows = [np.asarray(column) for column in live.save_rows()]
        order = np.lexsort((rows[0], rows[1]))
        found.append([live.stats()["step"], *(column[order] for column in rows)])
    return found


def assert_equal_tables(layer, other):
    for ours, theirs in zip(tables(layer), tables(other), strict=True):
        for column, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(column, expected)
