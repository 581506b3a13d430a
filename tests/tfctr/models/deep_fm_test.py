"""`DeepFM`: its formula, in NumPy."""

import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding
from tfctr.feature import Feature
from tfctr.models import DeepFM, DynamicTables, StaticTables

DIM = 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def mean(rows):
    return np.mean(rows, axis=0) if len(rows) else 0.0


def rows_of(layer, feature, ids):
    """The fields of one feature, `(fields, dim + 1)`, for one example's ids."""

    def read(ids, feature_name):
        return layer.read_rows(tf.constant(ids), feature_name).numpy().astype(float)

    if feature.is_bag:
        dim = layer.features[feature.name].table.dim
        bag = read(ids, feature.name) if len(ids) else np.zeros((0, dim))
        return [mean(bag) + np.zeros(dim)]
    if feature.width is None:
        return [read([ids], feature.name)[0]]
    return [read([id], f"{feature.name}/{i}")[0] for i, id in enumerate(ids)]


def probability(model, features, example):
    """The formula in the docstring of `DeepFM`, for one example, in float64."""
    # The order of the fields matters to the MLP: by name.
    by_name = sorted(features, key=lambda feature: feature.name)
    rows = [
        row
        for feature in by_name
        if not feature.is_dense
        for row in rows_of(model.get_layer("vectors"), feature, example[feature.name])
    ]
    weights, vectors = [row[DIM] for row in rows], [row[:DIM] for row in rows]
    numbers = np.array(
        [x for f in features if f.is_dense for x in np.atleast_1d(example[f.name])]
    )
    logit = sum(weights)
    logit += sum(v @ w for v, w in itertools.combinations(vectors, 2))
    hidden = np.concatenate([*vectors, numbers])
    for index in range(len(model.hidden_units)):
        kernel, bias = model.get_layer(f"hidden_{index}").get_weights()
        hidden = np.maximum(hidden @ kernel + bias, 0)
    kernel, bias = model.get_layer("deep_logit").get_weights()
    logit += (hidden @ kernel + bias).item()
    if len(numbers):
        (kernel,) = model.get_layer("dense_weights").get_weights()
        logit += (numbers @ kernel).item()
    return sigmoid(logit)


def one_by_one(inputs, features):
    lists = {
        f.name: inputs[f.name].to_list() if f.is_bag else inputs[f.name].numpy()
        for f in features
    }
    count = len(lists[features[0].name])
    return [{name: x[i] for name, x in lists.items()} for i in range(count)]


def randomise(model):
    """Makes every weight matter: biases start as zeros."""
    rng = np.random.default_rng(4)
    for layer in model.layers:
        if not isinstance(layer, DynamicEmbedding):
            shapes = [weight.shape for weight in layer.get_weights()]
            layer.set_weights([rng.normal(size=shape, scale=0.3) for shape in shapes])


def make_rows(model, inputs):
    """Takes one step that moves nothing: rows that were never updated read as zeros."""
    with tf.GradientTape() as tape:
        loss = 0.0 * model(inputs, training=True)
    tape.gradient(loss, model.trainable_variables)


@pytest.mark.parametrize(
    "names",
    [
        ["user", "ids", "tags", "dense", "age"],
        ["dense", "ids"],
        ["tags", "user"],
        ["age", "tags"],
        ["ids"],
    ],
    ids=lambda names: "+".join(names),
)
@pytest.mark.parametrize("hidden_units", [(5, 4), ()], ids=["mlp", "no_mlp"])
def test_the_output_is_the_formula(names, hidden_units, features, examples):
    known = {feature.name: feature for feature in features}
    features = [known[name] for name in names]
    tables = DynamicTables("sgd", initializer=keras.initializers.RandomNormal(0, 1))
    model = DeepFM(features, tables, DIM, hidden_units)
    randomise(model)
    inputs, _ = examples(8)
    inputs = {name: inputs[name] for name in names}
    make_rows(model, inputs)
    expected = [probability(model, features, x) for x in one_by_one(inputs, features)]
    found = model(inputs, training=False).numpy()[:, 0]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_unknown_ids_add_nothing(features, examples):
    model = DeepFM(features, DynamicTables("sgd"), DIM, hidden_units=())
    inputs, _ = examples(4)
    for layer in ("dense_weights", "deep_logit"):
        weights = model.get_layer(layer).get_weights()
        model.get_layer(layer).set_weights([np.zeros_like(w) for w in weights])
    np.testing.assert_array_equal(model(inputs, training=False), np.full((4, 1), 0.5))


def test_a_step_of_training_moves_weights_and_vectors_by_their_gradients():
    # Two fields and no MLP: p = sigmoid(bias + w_1 + w_2 + <v_1, v_2> + MLP), where
    # the last layer is set to zero.
    tables = DynamicTables(
        keras.optimizers.SGD(0.5), initializer=keras.initializers.RandomNormal(0, 1)
    )
    model = DeepFM([Feature("ids", "int64", width=2)], tables, DIM, hidden_units=())
    weights = [np.zeros((2 * DIM, 1)), np.array([0.25])]
    model.get_layer("deep_logit").set_weights(weights)
    model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy", run_eagerly=True)
    ids, label = np.array([[7, 8]]), np.array([[1.0]])
    layer = model.get_layer("vectors")
    rows = layer({"ids": ids}, training=True)["ids"].numpy()[0]
    v, w = rows[:, :DIM], rows[:, DIM]
    error = sigmoid(0.25 + w.sum() + v[0] @ v[1]) - 1.0
    model.train_on_batch({"ids": ids}, label)
    for column, other in ((0, 1), (1, 0)):
        row = layer.read_rows(ids[0, column : column + 1], f"ids/{column}").numpy()[0]
        np.testing.assert_allclose(row[DIM], w[column] - 0.5 * error, rtol=1e-5)
        expected = v[column] - 0.5 * error * v[other]
        np.testing.assert_allclose(row[:DIM], expected, rtol=1e-5)


def test_dropout_is_for_training_alone(features, examples):
    tables = DynamicTables("sgd")
    model = DeepFM(features, tables, DIM, hidden_units=(64,), dropout=0.5)
    inputs, _ = examples(8)
    still, again = (model(inputs, training=False).numpy() for _ in range(2))
    np.testing.assert_array_equal(still, again)
    model(inputs, training=True)  # Makes the rows.
    first, second = (model(inputs, training=True).numpy() for _ in range(2))
    assert (first != second).any()


def test_an_id_is_looked_up_once(features):
    model = DeepFM(features, DynamicTables("sgd"), DIM)
    (layer,) = [x for x in model.layers if isinstance(x, DynamicEmbedding)]
    assert layer.tables.keys() == {"vectors"}
    assert {config.table.dim for config in layer.features.values()} == {DIM + 1}


def test_static_and_dynamic_models_have_the_same_dense_weights(features):
    vocabularies = {"user": [1], "ids": [1], "tags": ["a"]}
    shapes = [
        [
            weight.shape
            for layer in DeepFM(features, vectors, DIM).layers
            if isinstance(layer, keras.layers.Dense)
            for weight in layer.get_weights()
        ]
        for vectors in (DynamicTables("sgd"), StaticTables(vocabularies))
    ]
    assert shapes[0] == shapes[1]


def test_features_without_ids_are_refused():
    message = "Received: features=['age', 'dense'], all dense."
    features = [Feature("age", "float32"), Feature("dense", "float32", width=2)]
    with pytest.raises(ValueError, match=re.escape(message)):
        DeepFM(features, DynamicTables("sgd"))


def test_two_features_of_one_name_are_refused():
    message = "Received: features=['user', 'age', 'user']."
    features = [Feature(n, "int64") for n in ("user", "age", "user")]
    with pytest.raises(ValueError, match=re.escape(message)):
        DeepFM(features, DynamicTables("sgd"))


def test_a_width_of_vectors_is_needed():
    message = "`dim` must be a positive integer. Received: dim=0."
    with pytest.raises(ValueError, match=re.escape(message)):
        DeepFM([Feature("user", "int64")], DynamicTables("sgd"), dim=0)
