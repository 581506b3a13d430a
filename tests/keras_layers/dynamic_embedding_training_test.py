"""Training a model around `DynamicEmbedding`, against models that are known.

Two oracles: a model in plain NumPy whose tables are dicts, and a Keras model on a fixed
vocabulary that multiplies one-hot ids by a matrix, so that gradients of equal ids are
summed before its optimizer sees them.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr_ops import SparseOptimizer

DIM, COLUMNS, VOCABULARY = 3, 2, 5
BATCH, STEPS = 6, 10
RATE, DENSE_RATE = 0.2, 0.1


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(3)


def examples(steps=STEPS):
    """Ids with duplicates in every batch, labels, and sample weights."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, size=(steps * BATCH, COLUMNS))
    labels = rng.normal(size=(len(ids), 1)).astype("float32")
    weights = rng.uniform(0.5, 2.0, size=len(ids)).astype("float32")
    return ids, labels, weights


def batches(*arrays):
    for start in range(0, len(arrays[0]), BATCH):
        yield tuple(array[start : start + BATCH] for array in arrays)


def build(optimizer, head_trainable=True, **options):
    """A model `vectors -> Dense -> prediction`, and its layer."""
    inputs = keras.Input((COLUMNS,), dtype="int64")
    config = TableConfig("ads", dim=DIM, optimizer=optimizer)
    layer = DynamicEmbedding(config, **options)
    head = keras.layers.Dense(1, use_bias=False, trainable=head_trainable)
    return keras.Model(inputs, head(keras.layers.Flatten()(layer(inputs)))), layer


def first_rows(layer):
    """Row of every (column, id), before any update."""
    ids = np.repeat(np.arange(VOCABULARY)[:, np.newaxis], COLUMNS, axis=1)
    return layer(ids, training=True).numpy().swapaxes(0, 1)


def rows_of(layer):
    ids = np.arange(VOCABULARY)
    return np.stack([layer.read_rows(ids, column) for column in range(COLUMNS)])


class NumpyModel:
    """The same model: a dict per slot, float64, one key after the other."""

    def __init__(self, kind, rows, head):
        self.kind, self.step = kind, 0
        self.rows = {
            (column, i): rows[column, i].astype("float64")
            for column in range(COLUMNS)
            for i in range(VOCABULARY)
        }
        self.slots = {key: {} for key in self.rows}
        self.head = head.astype("float64")

    def train(self, ids, labels, weights):
        """One step of weighted mean squared error; returns the loss."""
        keys = [[(column, i) for column, i in enumerate(row)] for row in ids.tolist()]
        x = np.array([np.concatenate([self.rows[k] for k in row]) for row in keys])
        error = x @ self.head - labels
        slope = 2 * weights[:, np.newaxis] * error / len(ids)
        gradients = (slope @ self.head.T).reshape(len(ids), COLUMNS, DIM)
        self.head -= DENSE_RATE * x.T @ slope
        sums = {}
        for row, of_row in zip(keys, gradients, strict=True):
            for key, gradient in zip(row, of_row, strict=True):
                sums[key] = sums.get(key, 0.0) + gradient
        self.step += 1
        for key, gradient in sums.items():
            self.rows[key] = self.rows[key] - self.move(self.slots[key], gradient)
        return np.mean(weights * error[:, 0] ** 2)

    def move(self, slots, g):
        if self.kind == "sgd":
            return RATE * g
        if self.kind == "adagrad":
            slots["a"] = slots.get("a", 0.1) + g**2
            return RATE * g / np.sqrt(slots["a"] + 1e-7)
        slots["m"] = 0.9 * slots.get("m", 0.0) + 0.1 * g
        slots["v"] = 0.999 * slots.get("v", 0.0) + 0.001 * g**2
        rate = RATE * np.sqrt(1 - 0.999**self.step) / (1 - 0.9**self.step)
        return rate * slots["m"] / (np.sqrt(slots["v"]) + 1e-7)

    def table(self):
        rows = [self.rows[c, i] for c in range(COLUMNS) for i in range(VOCABULARY)]
        return np.reshape(rows, (COLUMNS, VOCABULARY, DIM))


def fit(model, ids, labels, weights, **options):
    model.compile(keras.optimizers.SGD(DENSE_RATE), "mean_squared_error", **options)
    model.fit(
        ids,
        labels,
        sample_weight=weights,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
    )


def loop(model, ids, labels, weights, wrap, optimizer=None):
    optimizer = optimizer or keras.optimizers.SGD(DENSE_RATE)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.MeanSquaredError()

    @wrap
    def step(ids, labels, weights):
        with tf.GradientTape() as tape:
            value = loss(labels, model(ids, training=True), sample_weight=weights)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    for batch in batches(ids, labels, weights):
        step(*batch)


WAYS = {
    "fit": lambda *args: fit(*args),
    "fit, 4 steps per execution": lambda *args: fit(*args, steps_per_execution=4),
    "fit, eagerly": lambda *args: fit(*args, run_eagerly=True),
    "tf.function": lambda *args: loop(*args, wrap=tf.function),
    "eager loop": lambda *args: loop(*args, wrap=lambda step: step),
}
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(RATE),
    "adagrad": lambda: keras.optimizers.Adagrad(RATE),
    "adam": lambda: keras.optimizers.Adam(RATE),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_way_of_training_gives_the_numbers_of_numpy(way, kind):
    model, layer = build(OPTIMIZERS[kind]())
    data = examples()
    head = model.layers[-1].kernel
    oracle = NumpyModel(kind, first_rows(layer), head.numpy())
    WAYS[way](model, *data)
    for batch in batches(*data):
        oracle.train(*batch)
    assert layer.stats()["ads"]["step"] == STEPS
    np.testing.assert_allclose(rows_of(layer), oracle.table(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(head.numpy(), oracle.head, rtol=1e-4, atol=1e-5)


def test_the_losses_of_fit_are_those_of_numpy():
    model, layer = build(keras.optimizers.Adagrad(RATE))
    ids, labels, weights = examples()
    oracle = NumpyModel("adagrad", first_rows(layer), model.layers[-1].kernel.numpy())
    model.compile(keras.optimizers.SGD(DENSE_RATE), "mean_squared_error")
    losses = [model.train_on_batch(*batch) for batch in batches(ids, labels, weights)]
    expected = [oracle.train(*batch) for batch in batches(ids, labels, weights)]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


KERAS_OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, weight_decay=0.1),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adam": lambda: keras.optimizers.Adam(0.05),
    "AdamW": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "Ftrl": lambda: keras.optimizers.Ftrl(
        0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.001
    ),
}


@pytest.mark.parametrize("name", KERAS_OPTIMIZERS)
def test_a_static_vocabulary_with_summed_duplicates_gives_the_same_losses(name):
    # One id column, and every id in every batch: Keras' dense update then moves all
    # rows in every step, as ours does.
    rng = np.random.default_rng(1)
    ids = np.concatenate(
        [[*range(VOCABULARY), *rng.integers(0, VOCABULARY, 3)] for _ in range(STEPS)]
    )[:, np.newaxis]
    labels = rng.normal(size=(len(ids), 1)).astype("float32")

    def losses(model):
        model.compile(KERAS_OPTIMIZERS[name](), "mean_squared_error")
        history = model.fit(
            ids, labels, batch_size=8, epochs=3, shuffle=False, verbose=0
        )
        return history.history["loss"]

    inputs = keras.Input((1,), dtype="int64")
    config = TableConfig("ads", dim=DIM, optimizer=KERAS_OPTIMIZERS[name]())
    layer = DynamicEmbedding(FeatureConfig(config))
    head = keras.layers.Dense(1)
    ours = keras.Model(inputs, head(keras.layers.Flatten()(layer(inputs))))
    rows = layer(np.arange(VOCABULARY)[:, np.newaxis], training=True).numpy()[:, 0]

    one_hot = keras.layers.CategoryEncoding(VOCABULARY, output_mode="one_hot")
    matrix = keras.layers.Dense(DIM, use_bias=False)
    static_head = keras.layers.Dense(1)
    static = keras.Model(inputs, static_head(matrix(one_hot(inputs))))
    matrix.set_weights([rows])
    static_head.set_weights(head.get_weights())

    np.testing.assert_allclose(losses(ours), losses(static), rtol=1e-5)
    np.testing.assert_allclose(
        layer.read_rows(np.arange(VOCABULARY)), matrix.kernel, rtol=1e-4, atol=1e-6
    )


DENSE_OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam, clipped": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.01),
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.5),
    "AMSGrad, averaged": lambda: keras.optimizers.Adam(0.1, amsgrad=True, use_ema=True),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1, centered=True),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "Lion": lambda: keras.optimizers.Lion(0.1),
    "Lamb": lambda: keras.optimizers.Lamb(0.1),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.1),
}


def test_the_table_never_hears_of_the_dense_optimizer():
    data = examples(4)

    def table_after(dense):
        keras.utils.set_random_seed(3)
        model, layer = build(keras.optimizers.Adam(RATE), head_trainable=False)
        optimizer = dense()
        loop(model, *data, wrap=lambda step: step, optimizer=optimizer)
        assert optimizer.iterations == 4
        assert layer.anchor == 0.0
        return rows_of(layer)

    tables = {name: table_after(make) for name, make in DENSE_OPTIMIZERS.items()}
    expected = table_after(lambda: keras.optimizers.SGD(0.0))
    for name, found in tables.items():
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_one_optimizer_object_may_serve_table_and_model():
    ids, labels, _ = examples(4)

    def run(shared):
        keras.utils.set_random_seed(3)
        schedule = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 1.0)
        dense, table = (keras.optimizers.Adam(schedule) for _ in range(2))
        model, layer = build(dense if shared else table)
        model.compile(dense, "mean_squared_error")
        model.fit(ids, labels, batch_size=BATCH, shuffle=False, verbose=0)
        assert dense.iterations == 4
        return rows_of(layer)

    np.testing.assert_array_equal(run(shared=True), run(shared=False))


def fitted(dtype=None, storage=None):
    keras.utils.set_random_seed(11)
    rng = np.random.default_rng(2)
    inputs = keras.Input((8,), dtype="int64")
    config = TableConfig("ads", dim=8, optimizer=keras.optimizers.Adam(0.01))
    layer = DynamicEmbedding(config, storage, dtype=dtype)
    hidden = keras.layers.Flatten()(layer(inputs))
    hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(16, "relu")(hidden))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy")
    # 4,096 ids a batch: enough for the store to work in parallel.
    ids = rng.zipf(1.3, size=(4096, 8))
    labels = (ids[:, :1] % 2).astype("float32")
    losses = [
        model.train_on_batch(ids[start : start + 512], labels[start : start + 512])
        for start in range(0, len(ids), 512)
    ]
    return np.array(losses), list(layer.export(batch_size=10**6))


def assert_equal_runs(run, other):
    np.testing.assert_array_equal(run[0], other[0])
    assert len(run[1]) == len(other[1])
    for (name, ids, vectors), expected in zip(run[1], other[1], strict=True):
        assert name == expected[0]
        np.testing.assert_array_equal(ids, expected[1])
        np.testing.assert_array_equal(vectors, expected[2])


def test_two_runs_with_one_seed_are_equal_to_the_bit():
    assert_equal_runs(fitted(), fitted())


def test_threads_of_the_store_change_no_bit():
    one, two = (fitted(storage=TieredStorage(num_threads=n)) for n in (1, 2))
    assert_equal_runs(one, two)


def test_a_budget_that_is_not_reached_changes_no_bit():
    storage = TieredStorage(ram="64MB", eviction_policy="clock")
    assert_equal_runs(fitted(), fitted(storage=storage))


def test_mixed_bfloat16_trains_float32_rows():
    losses, rows = fitted("mixed_bfloat16")
    expected, _ = fitted()
    # bfloat16 has 8 bits: each prediction is off by about 2**-8 of itself.
    np.testing.assert_allclose(losses, expected, rtol=2**-6)
    _, _, vectors = rows[0]
    assert vectors.dtype == np.float32
    rounded = tf.cast(tf.cast(vectors, tf.bfloat16), tf.float32)
    assert np.mean(rounded.numpy() == vectors) < 0.1


@pytest.mark.parametrize("kind", ["ragged", "sparse", "strings", "per feature"])
def test_fit_takes_inputs_of_every_kind(kind):
    config = TableConfig("ads", dim=DIM, optimizer=SparseOptimizer("sgd"))
    features, dtype, options, names = FeatureConfig(config, "mean"), "int64", {}, None
    if kind == "ragged":
        ids = tf.ragged.constant([[1, 2], [], [2], [3, 1, 1]], dtype=tf.int64)
    elif kind == "sparse":
        ids = tf.sparse.from_dense(np.array([[1, 2], [0, 0], [2, 0], [0, 3]]))
        options = {"sparse": True}
    elif kind == "strings":
        ids = tf.constant([["a", "b"], ["b", "c"], ["c", "c"], ["a", ""]])
        dtype = "string"
    else:
        ids = {"x": np.array([[1, 2], [2, 2], [3, 1], [1, 1]])}
        features = {"x": features}
        names = "x"
    length = None if kind == "ragged" else 2
    inputs = keras.Input((length,), dtype=dtype, name=names, **options)
    inputs = {"x": inputs} if names else inputs
    layer = DynamicEmbedding(features)
    output = layer(inputs)["x"] if names else layer(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(output))
    model.compile("sgd", "mean_squared_error")
    data = tf.data.Dataset.from_tensor_slices((ids, tf.ones((4, 1)))).batch(2)
    model.fit(data, epochs=2, shuffle=False, verbose=0)
    assert layer.stats()["ads"]["step"] == 4
    assert layer.size() == (4 if kind == "strings" else 3)
    assert np.isfinite(model.predict(data, verbose=0)).all()


def test_weights_of_bags_pass_through_a_functional_model():
    ids, weights = keras.Input((3,), dtype="int64"), keras.Input((3,))
    config = TableConfig("ads", dim=1, optimizer=SparseOptimizer("sgd", 1.0), seed=0)
    layer = DynamicEmbedding(config, combiner="sum")
    model = keras.Model([ids, weights], layer(ids, weights=weights))
    model.compile("sgd", "mean_absolute_error")
    layer.write_rows([1, 2], [[5.0], [5.0]])
    data = [np.array([[1, 2, 1]]), np.array([[0.5, 2.0, 0.25]], np.float32)]
    model.fit(data, np.zeros((1, 1)), verbose=0)
    # The gradient of |y| is 1 here, times the weight of each occurrence.
    assert layer.size() == 2
    np.testing.assert_array_equal(layer.read_rows([1, 2]), [[4.25], [3.0]])
