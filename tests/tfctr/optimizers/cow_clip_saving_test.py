"""CowClip out of files, and how it finds the layers that it clips."""

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig
from tfctr.distributed import DistributedOptimizer
from tfctr.feature import Feature
from tfctr.models import DeepFM, StaticTables
from tfctr.optimizers import CowClip, KStepAdam
from tfctr_ops import SparseOptimizer

X = np.random.default_rng(1).integers(0, 5, (24, 2))
Y = np.random.default_rng(2).normal(size=24)


def functional():
    inputs = keras.Input((2,), dtype="int64")
    first, second = (keras.layers.Embedding(5, 3, name=name) for name in "ab")
    # Inside of a model of its own, whose name comes and goes in paths.
    tower = keras.Sequential([second, keras.layers.Flatten()], name="tower")
    parts = [keras.layers.Flatten()(first(inputs)), tower(inputs)]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(parts))
    return keras.Model(inputs, outputs), [first, tower]


def sequential():
    layer = keras.layers.Embedding(5, 3)  # Built when it is first called.
    parts = [layer, keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential(parts), [layer]


def deep_fm():
    tables = StaticTables({"ids": list(range(5))})
    model = DeepFM([Feature("ids", "int64", width=2)], tables, 2, [4])
    return model, [model.get_layer("vectors")]


def compiled(make, **options):
    keras.utils.set_random_seed(3)
    model, layers = make()
    optimizer = CowClip(
        keras.optimizers.Adam(1e-2),
        layers,
        ratio=0.0,
        floor=1e-3,
        embedding_optimizer=keras.optimizers.Adam(0.1),
    )
    model.compile(options.get("wrap", lambda one: one)(optimizer), "mean_squared_error")
    return model


def fit(model):
    x = {"ids": X} if isinstance(model, DeepFM) else X
    model.fit(x, Y, batch_size=8, shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize("make", [functional, sequential, deep_fm])
def test_a_saved_model_goes_on_as_it_was(make, tmp_path):
    model = fit(compiled(make))
    model.save(tmp_path / "model.keras")
    loaded = fit(keras.saving.load_model(tmp_path / "model.keras"))
    fit(model)
    assert isinstance(loaded.optimizer, CowClip)
    for here, there in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(here, there)
    shares = [list(one.optimizer.clipped_share.values()) for one in (model, loaded)]
    assert shares[0] == shares[1] and 0 < shares[0][0] <= 1
    assert int(loaded.optimizer.iterations) == 6


def test_tensorflow_checkpoints_hold_the_optimizers_inside(tmp_path):
    model = fit(compiled(functional))
    path = tf.train.Checkpoint(optimizer=model.optimizer).save(str(tmp_path / "of"))
    saved = [variable.numpy() for variable in model.optimizer.variables]
    fit(model)
    tf.train.Checkpoint(optimizer=model.optimizer).restore(path).assert_consumed()
    for variable, value in zip(model.optimizer.variables, saved, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_distributed_one_takes_over_the_state_and_is_saved_as_itself(tmp_path):
    model = fit(compiled(functional))
    again = compiled(functional)
    again.set_weights(model.get_weights())
    # Of a built optimizer, also the moments of the optimizers inside.
    again.optimizer.build(again.trainable_variables)
    of_model = model.optimizer.variables
    for here, there in zip(again.optimizer.variables, of_model, strict=True):
        here.assign(there)
    again.compile(DistributedOptimizer(again.optimizer), "mean_squared_error")
    fit(again)
    again.save(tmp_path / "model.keras")
    fit(model)
    for here, there in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(here, there)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is CowClip
    shares = [list(one.optimizer.clipped_share.values()) for one in (again, loaded)]
    assert shares[0] == shares[1] and shares[0][0] > 0


def test_a_model_is_exported_without_what_notes_its_calls(tmp_path):
    model = fit(compiled(functional))
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    found = served.serve(tf.constant(X, tf.int64))
    np.testing.assert_allclose(found, model.predict(X, verbose=0), rtol=1e-5)
    fit(model)


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": float("inf"), "name": "mine"},
        {"l2": 1e-4, "variant": "reference_code", "clip_linear": True},
        {"embedding_optimizer": "sgd", "embeddings": ["a", "b"]},
    ],
)
def test_the_config_makes_the_same_optimizer(options):
    optimizer = CowClip(keras.optimizers.Adam(0.5), **options)
    config = optimizer.get_config()
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, CowClip)
    assert again.get_config() == config
    assert float(again.learning_rate) == 0.5


# What is refused.


def build(embeddings, *layers):
    for layer in layers:
        layer.build(None)
    optimizer = CowClip("sgd", embeddings)
    optimizer.build([v for layer in layers for v in layer.trainable_variables])
    return optimizer


def test_embeddings_must_be_named():
    table, other = (keras.layers.Embedding(3, 2, name=name) for name in "tu")
    message = r"Received: embeddings=\(\). The model has \['t', 'u'\]: say CowClip"
    with pytest.raises(ValueError, match=message):
        build([], table, other)
    with pytest.raises(ValueError, match="TableConfig.optimizer=CowClip"):
        build([], keras.layers.Embedding(3, 2, trainable=False))


def test_a_path_must_be_known():
    table, other = (keras.layers.Embedding(3, 2, name=name) for name in "tu")
    with pytest.raises(ValueError, match=r"Received: 'v'. The model has \['t', 'u'\]."):
        build(["v"], table, other)


def test_a_path_must_stand_for_one_layer():
    table, other = (keras.layers.Embedding(3, 2, name="t") for _ in range(2))
    message = r"Received: 't', for which 2 of \['t', 't'\] may stand. Give the layers"
    with pytest.raises(ValueError, match=message):
        build(["t"], table, other)
    assert len(build(["t", "t"], table, other).variables) > 0
    assert len(build([other], table, other).variables) > 0


@pytest.mark.parametrize("embeddings", [keras.layers.Embedding(3, 2), "t", [3]])
def test_embeddings_are_a_list(embeddings):
    with pytest.raises(TypeError, match=r"Received: embeddings=.*\[layer\]"):
        CowClip("sgd", embeddings)


def test_a_layer_must_be_trained():
    table = keras.layers.Embedding(3, 2, name="t")
    frozen = keras.layers.Embedding(3, 2, name="f", trainable=False)
    with pytest.raises(ValueError, match="'f', built=True, trainable=False, of whose"):
        build([table, frozen], table, frozen)
    late = keras.layers.Embedding(3, 2, name="late")
    with pytest.raises(ValueError, match="'late', built=False, trainable=True"):
        build([late], table)
    adapted = keras.layers.Embedding(3, 2, name="lora")
    adapted.build(None)
    adapted.enable_lora(1)
    with pytest.raises(ValueError, match="'lora', .* variables 2 are trained"):
        build([adapted], adapted)


def test_a_layer_without_embeddings_is_refused():
    table = keras.layers.Embedding(3, 2)
    rows = DynamicEmbedding(TableConfig("ads", 2, "sgd"))
    with pytest.raises(ValueError, match="Received: DynamicEmbedding .*TableConfig"):
        build([rows], table)
    with pytest.raises(ValueError, match="built=False. A table of Dyn"):
        build([keras.Sequential()], table)


def test_a_layer_must_be_built_to_be_saved():
    for layer in (keras.layers.Embedding(3, 2, name="t"), keras.Sequential(name="t")):
        with pytest.raises(ValueError, match=r"Received: layer 't'. Call the model"):
            CowClip("sgd", [layer]).get_config()


def test_sparse_tensors_have_no_samples():
    table = keras.layers.Embedding(3, 2, name="t")
    build([table], table)
    with pytest.raises(ValueError, match="layer 't', called with a SparseTensor"):
        table(tf.sparse.from_dense([[1, 2]]))


def test_ids_must_be_seen():
    table = keras.layers.Embedding(3, 2, name="t")
    table.build(None)
    late = CowClip("sgd", ["t"])

    def step(optimizer):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(table(tf.constant([1])))
        variables = table.trainable_variables
        optimizer.apply(tape.gradient(value, variables), variables)

    with pytest.raises(ValueError, match="a gradient of layer 't' without them. Build"):
        step(late)
    step(late)

    @tf.function(autograph=False)
    def outer():
        look_up = tf.function(table.call, autograph=False)
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(look_up(tf.constant([1])))
        variables = table.trainable_variables
        late.apply(tape.gradient(value, variables), variables)

    with pytest.raises(ValueError, match="in one tf.function, or in none"):
        outer()


def test_variables_must_be_those_it_was_built_with():
    table, other = (keras.layers.Embedding(3, 2, name=name) for name in "tu")
    optimizer = build([table], table)
    other.build(None)
    with pytest.raises(ValueError, match="Received: 'u/embeddings', which is none"):
        optimizer.apply([tf.zeros((3, 2))], other.trainable_variables)
    with pytest.raises(ValueError, match="gradients only, before `build`"):
        CowClip("sgd").apply([tf.zeros(1)])
    with pytest.raises(ValueError, match="needs a gradient for one variable at least"):
        optimizer.apply([None])
    optimizer.apply([])


def accumulating():
    return keras.optimizers.SGD(gradient_accumulation_steps=2)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: 0.1, TypeError, "must be a Keras optimizer, or its name. Received: "),
        (lambda: CowClip("sgd"), ValueError, "plain Keras optimizer. Received: CowC"),
        (lambda: KStepAdam(k=2), ValueError, "Received: KStepAdam, which changes"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            ValueError,
            "Received: LossScaleOptimizer",
        ),
        (
            lambda: DistributedOptimizer("sgd"),
            ValueError,
            "Say DistributedOptimizer(CowClip(optimizer, ...)).",
        ),
        (
            lambda: keras.optimizers.SGD(loss_scale_factor=8.0),
            ValueError,
            "Received: loss_scale_factor=8.0 of ",
        ),
        (accumulating, ValueError, "Received: gradient_accumulation_steps=2 of "),
    ],
)
def test_not_every_optimizer_can_be_inside(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        CowClip(make())
    with pytest.raises(error, match="`embedding_optimizer`"):
        CowClip("sgd", embedding_optimizer=make())


def test_strategies_are_refused():
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        with pytest.raises(ValueError, match="Received: OneDeviceStrategy. Make it"):
            CowClip("sgd")


def test_rules_are_checked():
    with pytest.raises(ValueError, match="Received: ratio=-1"):
        CowClip("sgd", ratio=-1)


# As the optimizer of a table.


def test_a_table_is_told_to_clip():
    optimizer = CowClip(keras.optimizers.Adam(0.5), ratio=0.25, floor=1e-3, l2=1e-4)
    adam = SparseOptimizer("adam", learning_rate=0.5)
    clipping = dataclasses.replace(
        adam, clip_ratio=0.25, clip_floor=1e-3, l2_penalty=1e-4
    )
    assert TableConfig("ads", 8, optimizer).sparse_optimizer() == clipping
    # One weight has no direction; L2 it gets all the same.
    linear = TableConfig("ads", 1, optimizer).sparse_optimizer()
    assert linear == dataclasses.replace(adam, l2_penalty=1e-4)
    asked = CowClip("adam", ratio=0.25, clip_linear=True)
    assert TableConfig("ads", 1, asked).sparse_optimizer().clip_ratio == 0.25
    assert TableConfig("ads", 1, clipping).sparse_optimizer() == clipping


def test_a_table_reads_the_learning_rate_of_the_optimizer_inside():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.25])
    for rate, expected in ((schedule, [0.0, -1.0, -1.25]), (1.0, [0.0, -1.0, -1.5])):
        optimizer = CowClip(keras.optimizers.SGD(rate), ratio=float("inf"))
        table = TableConfig("ads", 2, optimizer, initializer="zeros")
        layer = DynamicEmbedding(table)
        found = [layer(np.array([7]), training=True).numpy()[0, 0]]
        for _ in range(2):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(layer(np.array([7]), training=True))
            tape.gradient(value, layer.trainable_variables)
            found.append(layer.read_rows([7]).numpy()[0, 0])
            if rate == 1.0:
                optimizer.learning_rate = 0.5
        np.testing.assert_allclose(found, expected)


def test_a_table_is_saved_with_it(tmp_path):
    layer = DynamicEmbedding(TableConfig("ads", 2, CowClip("adagrad", l2=1e-4)))
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").layers[0]
    tables = [one.features[""].table.sparse_optimizer() for one in (layer, loaded)]
    assert tables[0] == tables[1] and tables[0].l2_penalty == 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "reference_code"}, "Received: variant='reference_code'. Use"),
        ({"embeddings": ["t"]}, "CowClip with 1 `embeddings` and embedding_optimizer"),
        ({"embedding_optimizer": "sgd"}, "CowClip with 0 `embeddings`"),
    ],
)
def test_what_a_table_refuses(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TableConfig("ads", 2, CowClip("sgd", **options))
