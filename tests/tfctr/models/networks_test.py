"""The networks: their formulas in NumPy, their sizes, and what they look up."""

import itertools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding
from tfctr.feature import Feature
from tfctr.models import (
    DCN,
    DLRM,
    DCNv2,
    DeepFM,
    DynamicTables,
    StaticTables,
    WideDeep,
)

DIM = 3
# Without some of the ids: those share one vector.
VOCABULARIES = {"user": [1, 2, 3], "ids": [0, 2**60, 2**61], "tags": ["a", "b"]}
NORMAL = keras.initializers.RandomNormal(0, 1)
VECTORS = {
    "dynamic": lambda: DynamicTables("sgd", initializer=NORMAL),
    "static": lambda: StaticTables(VOCABULARIES, NORMAL),
}


# The formulas, for one example, in float64.


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


def dense(model, name, x):
    kernel, *bias = model.get_layer(name).get_weights()
    return x @ kernel.astype(float) + (bias[0] if bias else 0)


def mlp(model, x, units, name="hidden"):
    for index in range(len(units)):
        x = relu(dense(model, f"{name}_{index}", x))
    return x


def rows_of(layer, feature, ids):
    """The rows of these ids of a feature, `(n, dim)`; each column has its own."""
    if not isinstance(layer, DynamicEmbedding):
        known = [
            tf.compat.as_bytes(id) if feature.is_bag else id
            for id in VOCABULARIES[feature.name]
        ]
        (table,) = layer.tables[feature.name].get_weights()
        places = [known.index(id) + 1 if id in known else 0 for id in ids]
        return table[places].astype(float)
    name = feature.name
    names = [f"{name}/{i}" if feature.width else name for i in range(len(ids))]
    rows = [
        layer.read_rows(tf.constant([id]), name)[0]
        for id, name in zip(ids, names, strict=True)
    ]
    dim = layer.features[name].table.dim
    return np.array(rows, float).reshape(len(ids), dim)


def fields_of(layer, features, example):
    """`(fields, dim)`: features by name, columns in order, bags by their mean."""
    fields = []
    for feature in sorted(features, key=lambda feature: feature.name):
        if feature.is_dense:
            continue
        rows = rows_of(layer, feature, np.atleast_1d(example[feature.name]).tolist())
        if feature.is_bag:
            rows = rows.sum(axis=0, keepdims=True) / max(len(rows), 1)
        fields.append(rows)
    return np.concatenate(fields)


def numbers_of(features, example):
    numbers = [np.atleast_1d(example[f.name]) for f in features if f.is_dense]
    return np.concatenate(numbers) if numbers else np.zeros(0)


def linear(model, features, example):
    numbers = numbers_of(features, example)
    weights = fields_of(model.get_layer("weights"), features, example)
    return weights.sum() + (
        dense(model, "dense_weights", numbers).item() if len(numbers) else 0
    )


def wide_deep(model, vectors, numbers):
    flat = np.concatenate([*vectors, numbers])
    return dense(model, "deep_logit", mlp(model, flat, model.hidden_units))


def deep_fm(model, vectors, numbers):
    pairs = sum(v @ w for v, w in itertools.combinations(vectors, 2))
    return pairs + wide_deep(model, vectors, numbers)


def dcn(model, vectors, numbers):
    first = np.concatenate([*vectors, numbers])
    crossed = cross(model, first)
    last = np.concatenate([crossed, mlp(model, first, model.hidden_units)])
    return dense(model, "deep_logit", last)


def cross(model, first):
    weights = model.get_layer("cross_network").weights
    weights = {weight.name: weight.numpy().astype(float) for weight in weights}
    x = first
    for layer in range(model.num_cross_layers):
        bias = weights[f"bias_{layer}"]
        if isinstance(model, DCN):
            x = first * (weights[f"kernel_{layer}"][:, 0] @ x) + bias + x
        elif model.rank is None:
            x = first * (x @ weights[f"kernel_{layer}"] + bias) + x
        else:
            gate = np.exp(x @ weights["gate"])
            experts = zip(
                *(weights[f"{name}_{layer}"] for name in ("reduce", "transform")),
                weights[f"expand_{layer}"],
                gate / gate.sum(),
                strict=True,
            )
            mixed = sum(
                share * np.tanh(np.tanh(x @ v) @ c) @ u for v, c, u, share in experts
            )
            x = first * (mixed + bias) + x
    return x


def dlrm(model, vectors, numbers):
    known = []
    if len(numbers):
        hidden = mlp(model, numbers, model.bottom_units, "bottom")
        known = [relu(dense(model, "dense_vector", hidden))]
        vectors = [*known, *vectors]
    pairs = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
    top = np.concatenate([*known, pairs])
    return dense(model, "deep_logit", mlp(model, top, model.hidden_units))


# One line per network: its class, its own arguments, and its logit without what is
# linear in the ids.
NETWORKS = {
    "wide_deep": (WideDeep, {}, wide_deep),
    "deep_fm": (DeepFM, {}, deep_fm),
    "dcn": (DCN, {"num_cross_layers": 2}, dcn),
    "dcn_v2": (DCNv2, {"num_cross_layers": 2, "num_experts": 3, "rank": 2}, dcn),
    "dcn_v2_matrix": (DCNv2, {"num_cross_layers": 2, "rank": None}, dcn),
    "dlrm": (DLRM, {"bottom_units": (6, 5)}, dlrm),
}


def probability(network, model, features, example):
    vectors = fields_of(model.get_layer("vectors"), features, example)
    logit = NETWORKS[network][2](model, vectors, numbers_of(features, example))
    if network != "dlrm":
        logit = logit + linear(model, features, example)
    return sigmoid(logit.item())


def one_by_one(inputs, features):
    lists = {
        f.name: inputs[f.name].to_list() if f.is_bag else inputs[f.name].numpy()
        for f in features
    }
    count = len(lists[features[0].name])
    return [{name: x[i] for name, x in lists.items()} for i in range(count)]


def randomise(model, inputs):
    """Makes every weight matter: biases and the linear part start as zeros."""
    rng = np.random.default_rng(4)
    # A step that moves nothing: rows that were never updated read as zeros.
    with tf.GradientTape() as tape:
        loss = 0.0 * model(inputs, training=True)
    tape.gradient(loss, model.trainable_variables)
    for layer in model.layers:
        if isinstance(layer, DynamicEmbedding):
            for name, ids, rows in list(layer.export(1000)):
                layer.write_rows(ids, rng.normal(size=rows.shape), name)
        else:
            shapes = [weight.shape for weight in layer.get_weights()]
            layer.set_weights([rng.normal(size=shape, scale=0.7) for shape in shapes])


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize(
    "names",
    [["user", "ids", "tags", "dense", "age"], ["tags", "user"], ["age", "ids"]],
    ids="+".join,
)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_output_is_the_formula(network, names, vectors, features, examples):
    known = {feature.name: feature for feature in features}
    features = [known[name] for name in names]
    kind, arguments, _ = NETWORKS[network]
    units = () if names == ["tags", "user"] else (5, 4)
    model = kind(features, VECTORS[vectors](), DIM, units, **arguments)
    inputs, _ = examples(6)
    inputs = {name: inputs[name] for name in names}
    randomise(model, inputs)
    expected = [
        probability(network, model, features, example)
        for example in one_by_one(inputs, features)
    ]
    assert np.ptp(expected) > 0.01
    found = model(inputs, training=False).numpy()[:, 0]
    np.testing.assert_allclose(found, expected, rtol=5e-5)


# Sizes.


def full(inputs, outputs):
    """Weights of a dense layer."""
    return inputs * outputs + outputs


# Four fields of 10 and four numbers, then 400-400-400.
HIDDEN = full(44, 400) + 2 * full(400, 400)
LINEAR = 4
COUNTS = {
    "wide_deep": HIDDEN + full(400, 1) + LINEAR,
    "deep_fm": HIDDEN + full(400, 1) + LINEAR,
    "dcn": HIDDEN + 3 * (44 + 44) + full(444, 1) + LINEAR,
    # Three layers of four experts and a bias each, and the gate.
    "dcn_v2": HIDDEN
    + 3 * (4 * (44 * 32 + 32 * 32 + 32 * 44) + 44)
    + 44 * 4
    + full(444, 1)
    + LINEAR,
    "dcn_v2_matrix": HIDDEN + 3 * full(44, 44) + full(444, 1) + LINEAR,
    # Five vectors of 16 have ten pairs.
    "dlrm": full(4, 512)
    + full(512, 256)
    + full(256, 64)
    + full(64, 16)
    + full(16 + 10, 512)
    + full(512, 256)
    + full(256, 1),
}


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("network", NETWORKS)
def test_sizes_are_those_of_the_papers(network, vectors, features):
    rank = {"rank": None} if network == "dcn_v2_matrix" else {}
    model = NETWORKS[network][0](features, VECTORS[vectors](), **rank)
    tables = {"vectors", "weights"}
    layers = [layer for layer in model.layers if layer.name not in tables]
    assert sum(layer.count_params() for layer in layers) == COUNTS[network]


def test_cross_layers_of_dcn_are_kept_small_and_no_other_weight(features):
    model = DCN(features, VECTORS["static"](), DIM, (4,))
    weights = model.get_layer("cross_network").weights
    kernels = [weight.numpy() for weight in weights if "kernel" in weight.name]
    expected = 1e-5 * sum(np.square(kernel).sum() for kernel in kernels)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-6)


# Lookups.


def ops_of_a_step(model, inputs):
    """The names of all ops of a training step."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs, training=True))
        return tape.gradient(loss, model.trainable_variables)

    graph = step.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return [node.op for node in nodes]


@pytest.mark.parametrize("network", NETWORKS)
def test_a_table_is_looked_up_and_updated_once(network, features, examples):
    kind, arguments, _ = NETWORKS[network]
    model = kind(features, VECTORS["dynamic"](), DIM, (4,), **arguments)
    inputs, _ = examples(4)
    ops = ops_of_a_step(model, inputs)
    # DLRM has no linear part.
    widths = {"vectors": DIM} | ({} if network == "dlrm" else {"weights": 1})
    for name in ("Lookup", "Update"):
        assert ops.count(f"Tfctr>EmbeddingStore{name}") == len(widths)
    layers = [layer for layer in model.layers if isinstance(layer, DynamicEmbedding)]
    found = {
        layer.name: config.table.dim
        for layer in layers
        for config in layer.features.values()
    }
    assert found == widths


@pytest.mark.parametrize("network", NETWORKS)
def test_stock_embeddings_are_within_reach(network, features):
    kind, arguments, _ = NETWORKS[network]
    model = kind(features, VECTORS["static"](), DIM, (4,), **arguments)
    found = [tuple(layer.embeddings.shape) for layer in model.embedding_layers]
    # One row more than ids; all columns of a feature share a table.
    widths = [DIM] if network == "dlrm" else [DIM, 1]
    assert found == [(rows, dim) for dim in widths for rows in (4, 4, 3)]
    assert {type(layer) for layer in model.embedding_layers} == {keras.layers.Embedding}
    for layer in model.embedding_layers:
        assert any(weight is layer.embeddings for weight in model.trainable_variables)
    model = kind(features, VECTORS["dynamic"](), DIM, (4,), **arguments)
    assert model.embedding_layers == []


@pytest.mark.parametrize("vectors", VECTORS)
def test_unknown_ids_add_nothing_to_the_linear_part(vectors, features, examples):
    model = DeepFM(features, VECTORS[vectors](), DIM, hidden_units=())
    inputs, _ = examples(4)
    weights = model.get_layer("weights")(
        {n: inputs[n] for n in VOCABULARIES}, training=True
    )
    for of_feature in weights.values():
        np.testing.assert_array_equal(of_feature, np.zeros(of_feature.shape))


# Training.


@pytest.mark.parametrize("network", NETWORKS)
def test_dropout_is_for_training_alone(network, features, examples):
    kind, arguments, _ = NETWORKS[network]
    model = kind(features, VECTORS["dynamic"](), DIM, (64,), 0.5, **arguments)
    inputs, _ = examples(8)
    still, again = (model(inputs, training=False).numpy() for _ in range(2))
    np.testing.assert_array_equal(still, again)
    model(inputs, training=True)  # Makes the rows.
    first, second = (model(inputs, training=True).numpy() for _ in range(2))
    assert (first != second).any()


# Mistakes.


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("features", "dim", "message"),
    [
        (
            [Feature("age", "float32"), Feature("dense", "float32", width=2)],
            4,
            "at least one feature of ids. Received: features=['age', 'dense'], all",
        ),
        (
            [Feature(name, "int64") for name in ("user", "age", "user")],
            4,
            "a name each, which no other has. Received: features=['user', 'age', 'us",
        ),
        (
            [Feature("user", "int64")],
            0,
            "`dim` must be a positive integer. Received: dim=0.",
        ),
    ],
    ids=["no ids", "one name", "no width"],
)
def test_mistakes_are_refused(network, features, dim, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        NETWORKS[network][0](features, DynamicTables("sgd"), dim=dim)


def test_dlrm_needs_two_vectors():
    message = "at least two vectors to multiply"
    user = Feature("user", "int64")
    with pytest.raises(ValueError, match=message) as error:
        DLRM([user], DynamicTables("sgd"))
    assert "Received: features=['user'], one column of ids." in str(error.value)
    assert DLRM([user, Feature("age", "float32")], DynamicTables("sgd")).dim == 16


@pytest.mark.parametrize("network", NETWORKS)
def test_widths_of_numpy_are_taken_and_no_others_than_positive_integers(network):
    make, features = NETWORKS[network][0], [Feature("ids", "int64", width=2)]
    model = make(features, DynamicTables("sgd"), 2, hidden_units=np.array([3, 2]))
    assert json.loads(json.dumps(model.get_config()))["hidden_units"] == [3, 2]
    for wrong in ((3, 0), (2.0,), (True,)):
        message = f"or none. Received: hidden_units={wrong!r}."
        with pytest.raises(ValueError, match=re.escape(message)):
            make(features, DynamicTables("sgd"), 2, hidden_units=wrong)


def test_widths_of_the_bottom_of_dlrm_are_checked():
    features = [Feature("ids", "int64", width=2), Feature("age", "float32")]
    with pytest.raises(ValueError, match=re.escape("Received: bottom_units=(0,).")):
        DLRM(features, DynamicTables("sgd"), 2, bottom_units=(0,))
