"""When the table of a `DynamicEmbedding` moves, how often, and when it does not."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr_ops import SparseOptimizer

DIM = 3
IDS = np.array([[1, 2], [3, 1], [1, 1]])
SGD = SparseOptimizer("sgd", learning_rate=1.0)


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(5)


def one_feature(optimizer=SGD, **options):
    config = TableConfig("ads", dim=DIM, optimizer=optimizer, seed=0, **options)
    layer = DynamicEmbedding(FeatureConfig(config))
    layer(IDS)
    return layer


def state(layer):
    """All there is to a table: its counts, and its rows with their slots."""
    rows = [np.asarray(column) for column in layer.tables["ads"].save_rows()]
    order = np.lexsort((rows[0], rows[1]))
    return layer.stats()["ads"], [column[order] for column in rows]


def assert_equal_rows(layer, other):
    for column, expected in zip(state(layer)[1], state(other)[1], strict=True):
        np.testing.assert_array_equal(column, expected)


def assert_unchanged(layer, before, found=0):
    """But for the count of rows that training lookups have found since."""
    stats, rows = state(layer)
    assert stats == before[0] | {"found_rows": before[0]["found_rows"] + found}
    for column, expected in zip(rows, before[1], strict=True):
        np.testing.assert_array_equal(column, expected)


def steps(layer):
    return layer.stats()["ads"]["step"]


def train(layer, *batches, wrap=lambda step: step, scale=1.0):
    """One step: the sum of the squares of all vectors of all batches."""

    @wrap
    def step():
        with tf.GradientTape() as tape:
            outputs = [layer(ids, training=True) for ids in batches]
            loss = tf.add_n([tf.reduce_sum(scale * y**2) for y in outputs])
        return tape.gradient(loss, layer.trainable_variables)

    return step()


def model_around(layer, columns=2):
    inputs = keras.Input((columns,), dtype="int64")
    hidden = keras.layers.Flatten()(layer(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mean_squared_error")
    return model


# One update a step.

RULES = {
    "sgd": SGD,
    "adagrad": SparseOptimizer("adagrad", learning_rate=0.1),
    "rowwise_adagrad": SparseOptimizer("rowwise_adagrad", learning_rate=0.1),
    "adam": SparseOptimizer("adam", learning_rate=0.1),
    "adam per row": SparseOptimizer("adam", 0.1, bias_correction="row"),
    "ftrl": SparseOptimizer("ftrl", learning_rate=0.1),
}


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function])
@pytest.mark.parametrize("rule", RULES)
def test_calls_of_a_step_are_one_call_on_all_their_ids(rule, wrap):
    apart, together = (one_feature(RULES[rule]) for _ in range(2))
    other = np.array([[4, 1], [2, 2]])
    for _ in range(3):
        train(apart, IDS, other, IDS, wrap=wrap)
        train(together, np.concatenate([IDS, other, IDS]), wrap=wrap)
    assert (steps(apart), steps(together)) == (3, 3)
    assert_equal_rows(apart, together)


def test_a_layer_used_twice_in_a_model_makes_one_update_a_step():
    layer = one_feature(keras.optimizers.Adam(0.1))
    left, right = (keras.Input((2,), dtype="int64") for _ in range(2))
    score = keras.layers.Dot(axes=-1)(
        [keras.layers.Flatten()(layer(side)) for side in (left, right)]
    )
    model = keras.Model([left, right], score)
    model.compile("adam", "mean_squared_error", steps_per_execution=2)
    model.fit([IDS, IDS[::-1]], np.ones(3), batch_size=1, epochs=2, verbose=0)
    assert steps(layer) == 6
    assert layer.weights[-1] == 6


def test_each_distinct_key_counts_an_update_once():
    layer = one_feature()
    train(layer, IDS, np.array([[1, 4]]))
    _, rows = state(layer)
    ids, _, _, last_steps, counts = rows
    np.testing.assert_array_equal(ids, [1, 2, 3, 4])
    np.testing.assert_array_equal(counts, np.ones(4))
    np.testing.assert_array_equal(last_steps, np.ones(4))


def test_a_call_outside_the_loss_moves_nothing():
    layer, alone = one_feature(RULES["adam"]), one_feature(RULES["adam"])
    for _ in range(2):
        with tf.GradientTape() as tape:
            used = layer(IDS, training=True)
            unused = layer(np.array([[8, 9]]), training=True)
            loss = tf.reduce_sum(used**2)
        tape.gradient(loss, layer.trainable_variables)
        train(alone, IDS)
    assert np.any(unused)
    assert_equal_rows(layer, alone)


def test_a_layer_outside_the_loss_is_left_alone_and_keras_says_so():
    layer = one_feature()
    inputs = keras.Input((2,), dtype="int64")
    zeros = keras.layers.Lambda(lambda x: tf.stop_gradient(x))(layer(inputs))
    hidden = keras.layers.Dense(1)(keras.layers.Flatten()(zeros))
    model = keras.Model(inputs, hidden)
    model.compile("sgd", "mean_squared_error")
    with pytest.warns(UserWarning, match="Gradients do not exist for variables.*anch"):
        model.fit(IDS, np.ones((3, 1)), verbose=0)
    assert (layer.size(), steps(layer)) == (0, 0)


@pytest.mark.parametrize("ids", [np.zeros((0, 2), "int64"), np.full((3, 2), -1)])
def test_a_step_without_ids_is_a_step(ids):
    config = TableConfig("ads", dim=DIM, optimizer=RULES["adam"])
    layer = DynamicEmbedding(FeatureConfig(config, padding_id=-1))
    train(layer, ids)
    assert (layer.size(), steps(layer)) == (0, 1)


def test_the_gradient_of_the_anchor_is_zero():
    layer = one_feature()
    (gradient,) = train(layer, IDS)
    assert [v.path.rpartition("/")[2] for v in layer.trainable_variables] == ["anchor"]
    assert gradient.shape == ()
    assert gradient == 0.0


# What leaves the table alone.


def test_evaluation_and_prediction_change_nothing():
    layer = one_feature(RULES["adam"])
    model = model_around(layer)
    model.fit(IDS, np.ones((3, 1)), verbose=0)
    before, new_ids = state(layer), IDS + 100
    model.evaluate(new_ids, np.ones((3, 1)), verbose=0)
    model.test_on_batch(new_ids, np.ones((3, 1)))
    model.predict(new_ids, verbose=0)
    model.predict_on_batch(new_ids)
    model(new_ids)
    model(new_ids, training=False)
    layer.read_rows(new_ids[:, 0])
    assert_unchanged(layer, before)
    np.testing.assert_array_equal(layer(new_ids), np.zeros((3, 2, DIM)))


def test_a_frozen_table_does_not_move():
    layer = one_feature(RULES["adam"])
    model = model_around(layer)
    model.fit(IDS, np.ones((3, 1)), verbose=0)
    before = state(layer)
    layer.trainable = False
    model.compile("sgd", "mean_squared_error")
    model.fit(IDS + 1, np.ones((3, 1)), verbose=0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS, training=True))
    assert tape.gradient(loss, layer.anchor.value) is None
    assert_unchanged(layer, before)

    layer.trainable = True
    model.compile("sgd", "mean_squared_error")
    model.fit(IDS + 1, np.ones((3, 1)), verbose=0)
    assert steps(layer) == 2


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function])
def test_tapes_that_do_not_watch_the_layer_leave_it_alone(wrap):
    layer, scale = one_feature(), tf.Variable(2.0)
    train(layer, IDS)
    before = state(layer)

    @wrap
    def step():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(scale)
            loss = tf.reduce_sum(scale * layer(IDS, training=True))
        with tf.GradientTape() as reading:
            read = tf.reduce_sum(scale * layer(IDS, training=False))
        with tf.GradientTape():
            layer(IDS, training=True)
        return tape.gradient(loss, scale), reading.gradient(read, scale)

    gradients = step()
    expected = tf.reduce_sum(layer(IDS))
    np.testing.assert_allclose(gradients, [expected, expected], rtol=1e-6)
    # Two of the three lookups are of training; `IDS` has three distinct ids.
    assert_unchanged(layer, before, found=2 * 3)


def test_a_stopped_gradient_leaves_the_table_alone():
    layer = one_feature()
    train(layer, IDS)
    before = state(layer)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.stop_gradient(layer(IDS, training=True)))
    assert tape.gradient(loss, layer.trainable_variables) == [None]
    assert_unchanged(layer, before, found=3)


def test_a_frozen_model_does_not_move_its_table():
    layer = one_feature()
    model = model_around(layer)
    model.trainable = False
    model.compile("sgd", "mean_squared_error")
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        model.fit(IDS, np.ones((3, 1)), verbose=0)
    assert layer.stats()["ads"]["rows"] == 0


# Gradients that cannot be had.

UNTOLD = (
    "Layer 'ads_dim3_sgd_ram.*' expects to be told whether it is training before a "
    r"gradient is taken through it\. Received: training=None\. To train: give your "
    r"model's `call` the argument, .*def call\(self, inputs, training=None\)"
)


class Subclassed(keras.Model):
    """A model whose `call` knows nothing of training, as many are written."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(tf.reshape(self.layer(inputs), [-1, 2 * DIM]))


class SubclassedAndTold(Subclassed):
    def call(self, inputs, training=None):
        return super().call(inputs)


@pytest.mark.parametrize("eagerly", [False, True])
def test_fit_of_a_model_that_hands_no_training_on_is_refused(eagerly):
    layer = one_feature()
    model = Subclassed(layer)
    model.compile("sgd", "mean_squared_error", run_eagerly=eagerly)
    with pytest.raises(ValueError, match=UNTOLD):
        model.fit(IDS, np.ones((3, 1)), verbose=0)
    assert layer.size() == 0
    # Without a gradient there is nothing to complain about.
    assert np.isfinite(model.evaluate(IDS, np.ones((3, 1)), verbose=0))
    assert model.predict(IDS, verbose=0).shape == (3, 1)


def test_fit_of_a_subclassed_model_trains_the_table():
    layer = one_feature()
    model = SubclassedAndTold(layer)
    model.compile("sgd", "mean_squared_error")
    model.fit(IDS, np.ones((3, 1)), verbose=0)
    assert (layer.size(), steps(layer)) == (3, 1)


def test_a_loop_that_forgets_to_say_training_is_refused():
    layer = one_feature()
    model = model_around(layer)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(IDS))
    with pytest.raises(ValueError, match=UNTOLD):
        tape.gradient(loss, model.trainable_variables)
    assert layer.size() == 0


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function])
def test_a_lookup_has_one_gradient_only(wrap):
    layer = one_feature()

    @wrap
    def twice():
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(layer(IDS, training=True))
        for _ in range(2):
            gradients = tape.gradient(loss, layer.trainable_variables)
        return gradients

    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match="Table 'ads' was asked twice for the gradient of one lookup, and each "
        "would move its rows. Take one gradient per call of the layer: add the losses "
        "up first, and do not use a persistent tape twice.",
    ):
        twice()


def test_a_second_derivative_through_the_table_is_refused():
    layer, head = one_feature(), keras.layers.Dense(1)
    head(np.zeros((1, DIM)))
    variables = layer.trainable_variables + head.trainable_variables
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(head(layer(IDS, training=True)) ** 2)
        gradients = inner.gradient(loss, variables)
        penalty = tf.add_n([tf.reduce_sum(g**2) for g in gradients])
    with pytest.raises(tf.errors.FailedPreconditionError, match="asked twice"):
        outer.gradient(penalty, variables)


def test_a_penalty_on_the_gradient_of_the_vectors_trains_the_table():
    layer = one_feature(initializer="ones")
    with tf.GradientTape() as outer:
        vectors = layer(np.array([[1]]), training=True)
        with tf.GradientTape() as inner:
            inner.watch(vectors)
            loss = tf.reduce_sum(vectors**2)
        penalty = tf.reduce_sum(inner.gradient(loss, vectors) ** 2)
        total = loss + penalty
    outer.gradient(total, layer.trainable_variables)
    # v**2 + (2 v)**2 has the slope 10 v; from v = 1 a step of 1 leads to -9.
    np.testing.assert_array_equal(layer.read_rows([1]), [[-9.0] * DIM])


# Bad gradients.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e13])
def test_a_bad_gradient_is_an_error_that_names_the_table(value):
    layer = one_feature()
    model = model_around(layer)
    model.fit(IDS, np.ones((3, 1)), verbose=0)
    before, head = state(layer)[1], model.layers[-1].get_weights()
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=re.escape(
            "Table 'ads' received a gradient that is NaN, infinite or larger than "
            "1e12, in update 2. No row was changed. Lower the learning rate, check "
            "the inputs and the loss, or skip such steps with "
            "TableConfig(bad_gradients='skip')."
        ),
    ):
        train(layer, IDS, scale=value)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Table 'ads' received"):
        model.fit(IDS, np.full((3, 1), np.nan), verbose=0)
    for column, expected in zip(state(layer)[1], before, strict=True):
        np.testing.assert_array_equal(column, expected)
    assert steps(layer) == 1
    model.layers[-1].set_weights(head)
    model.fit(IDS, np.ones((3, 1)), verbose=0)
    assert steps(layer) == 2


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("wrap", [lambda step: step, tf.function])
@pytest.mark.parametrize("bad_gradients", ["raise", "skip"])
def test_one_bad_call_drops_its_whole_step(bad, wrap, bad_gradients):
    layer = one_feature(RULES["adam"], bad_gradients=bad_gradients)
    train(layer, IDS)
    before, scales = state(layer)[1], [1.0, 1.0]
    scales[bad] = np.nan

    @wrap
    def step():
        with tf.GradientTape() as tape:
            outputs = [layer(ids, training=True) for ids in (IDS, IDS + 1)]
            loss = tf.add_n(
                [
                    scale * tf.reduce_sum(y)
                    for scale, y in zip(scales, outputs, strict=True)
                ]
            )
        tape.gradient(loss, layer.trainable_variables)

    if bad_gradients == "raise":
        with pytest.raises(tf.errors.InvalidArgumentError, match="Table 'ads' receiv"):
            step()
    else:
        step()
        assert steps(layer) == 1
    for column, expected in zip(state(layer)[1], before, strict=True):
        np.testing.assert_array_equal(column, expected)
    assert layer.stats()["ads"]["skipped_updates"] == (bad_gradients == "skip")
    assert layer.weights[-1] == steps(layer)
    train(layer, IDS)  # It goes on.
    assert layer.weights[-1] == steps(layer)


def test_bad_gradients_may_be_skipped_and_are_counted():
    layer = one_feature(bad_gradients="skip")
    model = model_around(layer)
    model.layers[-1].trainable = False  # NaN would stay in its weights for good.
    model.compile("sgd", "mean_squared_error")
    labels = np.ones((3, 1))
    labels[1] = np.nan
    model.fit(IDS, labels, batch_size=1, shuffle=False, verbose=0)
    stats = layer.stats()["ads"]
    assert (stats["step"], stats["skipped_updates"]) == (2, 1)
    assert np.isfinite(layer.read_rows([1, 2, 3])).all()
    np.testing.assert_array_equal(layer.weights[-1], 2)


# XLA.


def test_fit_with_jit_compile_falls_back():
    layer = one_feature()
    model = model_around(layer)
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mean_squared_error", jit_compile=True)
    model.fit(IDS, np.ones((3, 1)), verbose=0)
    assert steps(layer) == 1


def test_a_function_compiled_by_xla_is_refused():
    layer = one_feature()
    run = tf.function(lambda ids: layer(ids), jit_compile=True)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="unsupported operations.*EmbeddingStoreRead",
    ):
        run(IDS)
