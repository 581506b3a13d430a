"""Training on the gradients of two ranks, against one process and against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.dense_models import X, Y, dense_model
from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr import distributed
from tfctr.callbacks import TrainingGuard
from tfctr.distributed import (
    BroadcastCallback,
    DistributedOptimizer,
    MetricAverage,
    ShardedStorage,
)

RANKS = 2


def optimizers():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.3, 10, 0.8)
    return {
        "sgd": keras.optimizers.SGD(schedule, momentum=0.9, global_clipnorm=0.05),
        "adam": keras.optimizers.Adam(0.05, use_ema=True, weight_decay=0.01),
    }


def batches(size=8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


def trained(optimizer, seed=0, **options):
    """The weights of a model without tables after 50 steps."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, "sigmoid")]
    if options.pop("built", True):
        layers = [keras.Input((3,)), *layers]
    model = keras.Sequential(layers)
    model.compile(optimizer, "binary_crossentropy")
    data = distributed.shard(batches().repeat(13).take(50))  # 13 times 8, 8, 8 and 7.
    callbacks = [BroadcastCallback(), TrainingGuard()]
    model.fit(data, callbacks=callbacks, shuffle=False, verbose=0, **options)
    return [weight.tolist() for weight in model.get_weights()]


def scored(optimizer, steps_per_execution=1):
    """The logs of `fit` and `evaluate`, with metrics of whole numbers and others."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    model.compile(
        optimizer,
        "binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.R2Score()],
        weighted_metrics=[keras.metrics.BinaryCrossentropy(name="log_loss")],
        steps_per_execution=steps_per_execution,
    )
    average = MetricAverage()
    history = model.fit(
        distributed.shard(batches().take(3)),
        validation_data=distributed.shard(batches(9), training=False),
        validation_freq=2,
        epochs=4,
        callbacks=[average],
        shuffle=False,
        verbose=0,
    ).history
    before = [variable.numpy().tolist() for variable in model.metrics_variables]
    data = distributed.shard(batches(9), training=False)
    mine = model.evaluate(data, callbacks=[average], verbose=0, return_dict=True)
    after = [variable.numpy().tolist() for variable in model.metrics_variables]
    return {
        "history": history,
        "evaluate": average.results,
        "own": mine,
        # As a validation of the same data has left them.
        "states are restored": before == after,
    }


def slices(rank, num_rows):
    """A gradient of rows with duplicates; rank 1 has other rows than rank 0."""
    indices = np.array([3, 1, 3, 0] if rank == 0 else [5, 3], np.int64)
    values = np.arange(len(indices) * 2.0, dtype="float32").reshape(-1, 2) + rank
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(indices), tf.constant([num_rows, 2], tf.int64)
    )


def moved(num_rows, eagerly, **options):
    """A table of rows, a weight and one without a gradient, after one step."""
    variables = [
        keras.Variable(np.zeros((num_rows, 2), "float32")),
        keras.Variable(np.ones(3, "float32")),
        keras.Variable(np.ones(2, "float32")),
        keras.Variable(np.ones(1), dtype="bfloat16"),
    ]
    optimizer = DistributedOptimizer(keras.optimizers.Adagrad(1.0), **options)
    optimizer.build(variables)

    def step():
        rank = distributed.rank()
        dense = tf.constant([1.0, 2.0, 3.0]) * (rank + 1)
        half = tf.constant([0.5 + rank], tf.bfloat16)
        with pytest.warns(UserWarning, match="Gradients do not exist"):
            optimizer.apply([slices(rank, num_rows), dense, None, half], variables)

    (step if eagerly else tf.function(step, autograph=False))()
    return [
        keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")).tolist()
        for variable in variables
    ]


def table_model(seed=None, storage=ShardedStorage, dim=2):
    table = TableConfig("ads", dim, keras.optimizers.SGD(0.1), seed=seed)
    ids = keras.Input((), dtype="int64")
    layer = DynamicEmbedding(FeatureConfig(table), storage(), name="embedding")
    return keras.Model(ids, keras.layers.Dense(1)(layer(ids)))


class Late(keras.Model):
    """A model with a table that is built when it is first called."""

    def __init__(self, storage=ShardedStorage):
        super().__init__(name="late")
        table = TableConfig("ads", 2, keras.optimizers.SGD(0.1), seed=1)
        self.rows = DynamicEmbedding(FeatureConfig(table), storage(), name="embedding")
        self.head = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.head(self.rows(inputs, training=training))


@keras.saving.register_keras_serializable(package="test")
class Largest(keras.metrics.Metric):
    """A metric whose state is no sum."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.value = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value


def refusal(model, *callbacks, x=None, optimizer=None, **options):
    optimizer = optimizer or DistributedOptimizer("sgd")
    model.compile(optimizer, "mean_squared_error", **options)
    x = np.arange(4) if x is None else x
    try:
        model.fit(x, np.zeros((4, 1)), verbose=0, callbacks=list(callbacks))
    except ValueError as error:
        return str(error)
    return "trained"


def scenarios():
    rank = distributed.rank()
    found = {"trained": {}, "moved": {}, "refused": {}}
    for name, optimizer in optimizers().items():
        for dtype in (None, "float16", "bfloat16")[: 3 if name == "adam" else 1]:
            wrapped = DistributedOptimizer(optimizer, wire_dtype=dtype)
            # Another seed on each rank: they begin with the weights of rank 0.
            found["trained"][f"{name} {dtype}"] = trained(wrapped, seed=rank)
    found["unbuilt"] = trained(DistributedOptimizer("sgd"), seed=rank, built=False)
    for steps in (1, 3):
        wrapped = DistributedOptimizer(keras.optimizers.Adam(0.05))
        found[f"scored {steps}"] = scored(wrapped, steps)
    for num_rows in (6, 1000):  # Sent whole, and as rows.
        for eagerly in (True, False):
            key = f"{num_rows} {eagerly}"
            found["moved"][key] = moved(num_rows, eagerly)
            found["moved"][f"{key} sum"] = moved(
                num_rows, eagerly, reduction="sum", wire_dtype="bfloat16"
            )
    refused = found["refused"]
    # Seeds that nobody has set differ between processes.
    refused["seeds"] = refusal(table_model(seed=10 + rank), BroadcastCallback())
    refused["nothing"] = refusal(table_model(seed=1), BroadcastCallback())
    refused["dims"] = refusal(table_model(seed=1, dim=2 + rank), BroadcastCallback())
    wrapped = DistributedOptimizer(keras.optimizers.SGD(momentum=0.5 * rank))
    refused["optimizers"] = refusal(
        table_model(seed=1), BroadcastCallback(), optimizer=wrapped
    )
    model = Late() if rank else table_model(seed=1)
    refused["built"] = refusal(model, BroadcastCallback())
    refused["late"] = refusal(Late(), BroadcastCallback())
    refused["xla"] = refusal(
        dense_model(0), BroadcastCallback(), x=X[:4], jit_compile=True
    )
    refused["metric"] = refusal(
        dense_model(0), MetricAverage(), x=X[:4], metrics=[Largest()]
    )
    plain = {"seed": 1, "storage": TieredStorage}
    for callback in (BroadcastCallback, MetricAverage, TrainingGuard):
        name = callback.__name__
        refused[f"plain {name}"] = refusal(
            dense_model(0), callback(), x=X[:4], optimizer="sgd"
        )
        refused[f"storage {name}"] = refusal(table_model(**plain), callback())
    refused["late storage"] = refusal(Late(TieredStorage), TrainingGuard())
    return found


@pytest.fixture(scope="module")
def found(run_ranks):
    return run_ranks(RANKS, __file__, "scenarios")


def check_close(found, expected, **tolerance):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_two_ranks_train_as_one_process(found, name):
    expected = trained(optimizers()[name])
    for of_rank in found:
        check_close(of_rank["trained"][f"{name} None"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.multiprocess
@pytest.mark.parametrize("dtype, error", [("float16", 0.01), ("bfloat16", 0.1)])
def test_rounded_gradients_train_nearly_alike(found, dtype, error):
    expected = trained(optimizers()["adam"])
    for of_rank in found:
        check_close(of_rank["trained"][f"adam {dtype}"], expected, atol=error)
        assert of_rank["trained"][f"adam {dtype}"] != expected


@pytest.mark.multiprocess
def test_all_ranks_have_the_same_weights_to_the_bit(found):
    first, second = found
    assert first["trained"] == second["trained"]
    assert first["unbuilt"] == second["unbuilt"]
    assert first["moved"] == second["moved"]


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_rows", [6, 1000])
@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_of_rows_are_summed_by_row(found, num_rows, eagerly, reduction):
    gradient = np.zeros((num_rows, 2))
    for rank in range(RANKS):
        part = slices(rank, num_rows)
        np.add.at(gradient, part.indices.numpy(), part.values.numpy())
    dense, half = np.array([3.0, 6.0, 9.0]), np.array([2.0])
    if reduction == "mean":
        gradient, dense, half = gradient / RANKS, dense / RANKS, half / RANKS

    def adagrad(start, gradient):
        return start - gradient / np.sqrt(0.1 + gradient**2 + 1e-7)

    expected = [adagrad(0, gradient), adagrad(1, dense), [1, 1], adagrad(1, half)]
    key = f"{num_rows} {eagerly}" + " sum" * (reduction == "sum")
    for of_rank in found:
        *exact, rounded = of_rank["moved"][key]
        check_close(exact, expected[:-1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(rounded, expected[-1], atol=0.02)


@pytest.mark.multiprocess
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_metrics_are_those_of_all_examples(found, steps_per_execution):
    expected = scored(keras.optimizers.Adam(0.05), steps_per_execution)
    for of_rank in found:
        logs = of_rank[f"scored {steps_per_execution}"]
        assert logs["states are restored"]
        assert sorted(logs["history"]) == sorted(expected["history"])
        for name, values in expected["history"].items():
            assert len(values) == (2 if name.startswith("val_") else 4)
            np.testing.assert_allclose(logs["history"][name], values, rtol=1e-4)
        for name, value in expected["own"].items():
            assert logs["evaluate"][name] == pytest.approx(value, rel=1e-4)
    # Neither of the ranks could have known it.
    aucs = [of_rank["scored 1"]["own"]["auc"] for of_rank in found]
    assert expected["own"]["auc"] not in aucs


REFUSED = {
    "nothing": "trained",
    "seeds": "All ranks must train the same model. Received: seed of table 'ads': 10 "
    "on rank 0, seed of table 'ads': 11 on rank 1. Make the model in the same way on "
    "all ranks, after keras.utils.set_random_seed(...)",
    "dims": "dim of table 'ads' of feature '': 2 on rank 0, dim of table 'ads' of "
    "feature '': 3 on rank 1.",
    "optimizers": "momentum of the optimizer: 0.0 on rank 0, momentum of the "
    "optimizer: 0.5 on rank 1.",
    "built": "A model must be built on all ranks, or on none. Received: built=",
    "late": "A model with tables must be built before it trains on several ranks. "
    "Received: model 'late', built by its first batch, with the layer 'embedding'. "
    "Call it once before `fit`, on all ranks: model(inputs).",
    "xla": "Received: jit_compile=True. Say model.compile(..., jit_compile=False).",
    "metric": "Received: the metric 'largest' of class Largest, whose states need not "
    "be sums. If they are, give the class an attribute sums_over_ranks = True; if not, "
    "evaluate it on one rank.",
    "late storage": "2 ranks must train one set of rows. Received: layer 'embedding'",
}
for callback in (BroadcastCallback, MetricAverage, TrainingGuard):
    REFUSED[f"plain {callback.__name__}"] = (
        "2 ranks must train one model. Received: SGD, an optimizer that knows its own "
        "rank only. Compile with tfctr.distributed.DistributedOptimizer(optimizer)."
    )
    REFUSED[f"storage {callback.__name__}"] = (
        "2 ranks must train one set of rows. Received: layer 'embedding' with "
        "TieredStorage, which knows its own rank only. Make it with "
        "storage=tfctr.distributed.ShardedStorage(...), or ReplicatedStorage(...), "
        "around that storage."
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", REFUSED)
def test_ranks_that_would_train_apart_are_told(found, kind):
    for of_rank in found:
        assert REFUSED[kind] in of_rank["refused"][kind]


def test_the_gradients_of_anchors_are_not_sent(monkeypatch):
    sent = []

    def all_reduce(tensors, *arguments):
        sent.append([tuple(tensor.shape) for tensor in tensors])
        return tensors

    monkeypatch.setattr(distributed.engine, "size", lambda: 2)
    monkeypatch.setattr(distributed.engine, "all_reduce", all_reduce)
    model = table_model(seed=1, storage=TieredStorage)
    assert model.get_layer("embedding").seeds == {"ads": 1}
    assert refusal(model, run_eagerly=True) == "trained"
    assert sent == [[(2, 1), (1,)]]  # The head.


# Alone.


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_alone_it_does_as_the_optimizer_it_was_made_of(name):
    # TensorFlow's dense kernels may add in another order each time.
    check_close(
        trained(DistributedOptimizer(optimizers()[name])),
        trained(optimizers()[name]),
        rtol=1e-5,
        atol=1e-6,
    )


def test_alone_the_logs_are_those_of_keras():
    logs = scored(DistributedOptimizer(keras.optimizers.Adam(0.05)))
    assert logs["evaluate"] == logs["own"]
    assert logs["history"] == scored(keras.optimizers.Adam(0.05))["history"]
