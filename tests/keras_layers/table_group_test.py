"""Tables that share lookups and updates, their learning rate, threads and memory."""

import gc
import sys
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr_ops import SparseOptimizer

DIM = 3
ADAGRAD = SparseOptimizer("adagrad", learning_rate=0.5)


def table(name="ads", dim=DIM, **options):
    return TableConfig(name, dim=dim, **{"optimizer": ADAGRAD, **options})


def count_ops(concrete_function):
    """How often each op of ours stands in a traced function."""
    graph = concrete_function.graph.as_graph_def()
    nodes = [*graph.node]
    for function in graph.library.function:
        nodes.extend(function.node_def)
    kinds = [n.op.partition(">")[2] for n in nodes if n.op.startswith("Tfctr>")]
    return {kind: kinds.count(kind) for kind in kinds}


def first_rows(layer, inputs):
    """What training would start from."""
    return layer(inputs, training=True)


# Sharing.


def test_there_is_one_lookup_and_one_update_per_row_width():
    wide, slim = table("wide", 8), table("slim", 1)
    users = TableConfig("users", dim=8, optimizer=wide.optimizer)
    layer = DynamicEmbedding(
        {
            "cats": FeatureConfig(wide, per_column=True),
            "user": FeatureConfig(users),
            "history": FeatureConfig(wide, combiner="mean"),
            "cats_bias": FeatureConfig(slim, per_column=True),
            "user_bias": FeatureConfig(slim),
        }
    )
    ids = {
        "cats": np.array([[1, 2, 3]]),
        "user": np.array([4]),
        "history": np.array([[5, 6]]),
        "cats_bias": np.array([[1, 2, 3]]),
        "user_bias": np.array([4]),
    }
    layer(ids)

    @tf.function
    def step(training):
        with tf.GradientTape() as tape:
            outputs = layer(ids, training=training)
            loss = tf.add_n([tf.reduce_sum(x) for x in outputs.values()])
        return tape.gradient(loss, layer.trainable_variables)

    assert count_ops(step.get_concrete_function(True)) == {
        "EmbeddingStoreLookup": 2,
        "EmbeddingStoreUpdate": 2,
    }
    assert count_ops(step.get_concrete_function(False)) == {"EmbeddingStoreRead": 2}
    assert list(layer.tables) == ["wide", "slim"]


def test_tables_that_differ_in_more_than_name_and_seed_stay_apart():
    configs = [
        table("a"),
        table("b", seed=3),
        table("c", optimizer=SparseOptimizer("sgd")),
        table("d", initializer="ones"),
        table("e", default_row=(1, 1, 1)),
        table("f", bad_gradients="skip"),
    ]
    layer = DynamicEmbedding({c.name: FeatureConfig(c) for c in configs})
    first = first_rows(layer, {c.name: np.array([1]) for c in configs})
    assert list(layer.tables) == ["a", "c", "d", "e", "f"]
    np.testing.assert_array_equal(first["d"], np.ones((1, DIM)))
    np.testing.assert_array_equal(layer.read_rows([1], "e"), np.ones((1, DIM)))


# The learning rate.


def zeros(optimizer, storage=None):
    """A layer of one feature whose rows start from zero."""
    layer = DynamicEmbedding(
        FeatureConfig(table(optimizer=optimizer, initializer="zeros")), storage
    )
    layer(np.array([1]))
    return layer


def position(layer):
    """The row of id 1: the same number in each place."""
    row = layer.read_rows([1]).numpy()[0]
    assert (row == row[0]).all()
    return row[0]


def take_step(layer):
    """With a gradient of one."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1]), training=True))
    return tape.gradient(loss, layer.trainable_variables)


def positions(layer, count):
    """Of `count` steps."""
    found = []
    for _ in range(count):
        take_step(layer)
        found.append(position(layer))
    return found


def model_with_gradient_one(layer, **options):
    inputs = keras.Input((), dtype="int64")
    total = keras.layers.Lambda(lambda x: tf.reduce_sum(x, axis=-1))(layer(inputs))
    model = keras.Model(inputs, total)
    model.compile("sgd", lambda labels, y: y, **options)
    return model


def test_the_learning_rate_is_read_at_each_step():
    optimizer = keras.optimizers.SGD(0.5)
    layer = zeros(optimizer)
    model = model_with_gradient_one(layer)
    for rate, expected in ((0.5, -0.5), (0.25, -0.75), (0.0, -0.75)):
        optimizer.learning_rate = rate
        model.fit(np.array([1]), np.zeros(1), verbose=0)
        assert position(layer) == expected


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """1, 1/2, 1/4 ..."""

    def __call__(self, step):
        return 2.0 ** -tf.cast(step, tf.float32)

    def get_config(self):
        return {}


def test_a_schedule_follows_the_updates_of_the_table():
    layer = zeros(keras.optimizers.SGD(Halving()))
    assert positions(layer, 2) == [-1, -3 / 2]
    layer(np.array([1]))
    layer(np.array([1]), training=True)  # Neither of them is an update.
    assert positions(layer, 2) == [-7 / 4, -15 / 8]


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_a_schedule_in_fit_sees_each_step(steps_per_execution):
    layer = zeros(keras.optimizers.SGD(Halving()))
    model = model_with_gradient_one(layer, steps_per_execution=steps_per_execution)
    ids, labels = np.ones(3, "int64"), np.zeros(3)
    model.fit(ids, labels, batch_size=1, verbose=0)
    model.evaluate(ids, labels, batch_size=1, verbose=0)
    model.fit(ids, labels, batch_size=1, verbose=0)
    assert position(layer) == -(2 - 1 / 32)


def test_two_layers_with_one_optimizer_count_for_themselves():
    optimizer = keras.optimizers.SGD(Halving())
    one, other = (zeros(optimizer) for _ in range(2))
    assert positions(one, 2) == [-1, -3 / 2]
    assert positions(other, 3) == [-1, -3 / 2, -7 / 4]
    assert positions(one, 1) == [-7 / 4]


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_an_object_of_its_own_may_say_what_an_update_is(rate):
    class Ours:
        def sparse_optimizer(self):
            return SparseOptimizer("sgd", learning_rate=rate)

    assert positions(zeros(Ours()), 2) == [-rate, -2 * rate]
    assert positions(zeros(Ours().sparse_optimizer()), 2) == [-rate, -2 * rate]


# Threads.


@pytest.fixture
def hasty_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_threads_that_train_one_layer_keep_rows_and_weights_in_step(hasty_threads):
    layer, errors = zeros(ADAGRAD), []

    def train():
        try:
            for _ in range(100):
                take_step(layer)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert layer.weights[-1] == layer.stats()["ads"]["step"]
    take_step(layer)


# Memory.


def fit(layer):
    model_with_gradient_one(layer).fit(np.array([1]), np.zeros(1), verbose=0)


def fit_with_a_custom_gradient_elsewhere(layer):
    inputs = keras.Input((), dtype="int64")
    hidden = keras.layers.Dense(2, activation="swish")(layer(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mean_squared_error", steps_per_execution=2)
    model.fit(np.array([1, 2]), np.zeros(2), batch_size=1, verbose=0)
    model.predict(np.array([1]), verbose=0)


@pytest.mark.parametrize(
    "train",
    [
        take_step,
        lambda layer: tf.function(take_step)(layer),
        fit,
        fit_with_a_custom_gradient_elsewhere,
    ],
    ids=["eagerly", "in a function", "fit", "custom gradient"],
)
def test_a_table_goes_with_its_layer(train):
    storage = TieredStorage(ram=2000)  # For one such table, and not for two.
    for _ in range(3):
        layer = zeros(ADAGRAD, storage)
        layer.write_rows(np.arange(30), np.zeros((30, DIM)))
        train(layer)
        table = weakref.ref(layer.tables["ads"])
        del layer
        keras.backend.clear_session()  # Which forgets the models that Keras remembers.
        gc.collect()
        assert table() is None
