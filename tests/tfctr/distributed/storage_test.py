"""Tables over several ranks: the same numbers as one process on the global batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import (
    DynamicEmbedding,
    TableConfig,
    TieredStorage,
)
from tfctr.distributed import ReplicatedStorage, ShardedStorage, engine

STEPS, BATCH, FIELDS, DIM = 200, 32, 3, 4
OPTIMIZERS = {
    "sgd": keras.optimizers.SGD(0.5),
    "adagrad": keras.optimizers.Adagrad(0.1),
    "adam": keras.optimizers.Adam(0.02),
}
STORAGES = {
    "sharded": ShardedStorage,
    "replicated": ReplicatedStorage,
    "float16": lambda: ShardedStorage(wire_dtype="float16"),
    "bfloat16": lambda: ShardedStorage(wire_dtype="bfloat16"),
    "one": TieredStorage,
}


def batches(seed=0):
    """Global batches of skewed ids; the last of ten is uneven, or nearly empty."""
    rng = np.random.default_rng(seed)
    for step in range(STEPS):
        size = (BATCH, BATCH, 5, 1)[step % 10 // 7 + (step % 20 == 19)]
        ids = (rng.pareto(1.0, (size, FIELDS)) * 5).astype(np.int64)
        yield ids, (rng.random(size) < 0.5).astype(np.float32)


def own_part(ids, labels):
    """The slice of this rank, and what its mean counts in the global one."""
    rank, ranks = engine.rank(), engine.size()
    part = slice(rank * len(ids) // ranks, (rank + 1) * len(ids) // ranks)
    return ids[part], labels[part], ranks * len(ids[part]) / len(ids)


def losses_of(layer):
    """Trains the table alone, under a logistic loss; the mean loss of each batch."""

    @tf.function(reduce_retracing=True)
    def step(ids, labels, weight):
        with tf.GradientTape() as tape:
            logits = tf.reduce_sum(layer(ids, training=True), [1, 2])
            loss = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.math.divide_no_nan(
                tf.reduce_sum(loss), tf.cast(tf.size(loss), tf.float32)
            )
            loss *= weight
        tape.gradient(loss, layer.trainable_variables)
        [mean] = engine.all_reduce([loss], "loss", average=True)
        return mean

    return [
        float(step(tf.constant(ids), tf.constant(labels), weight))
        for ids, labels, weight in (own_part(*batch) for batch in batches())
    ]


def rows_of(layer):
    return {
        f"{name}:{id_}": vector.tolist()
        for name, ids, vectors in layer.export(1000)
        for id_, vector in zip(ids.tolist(), vectors, strict=True)
    }


def train(storage, optimizer):
    keras.utils.set_random_seed(1)
    table = TableConfig("ads", DIM, OPTIMIZERS[optimizer], seed=3)
    layer = DynamicEmbedding(table, storage=STORAGES[storage]())
    losses = losses_of(layer)
    read = layer.read_rows([0, 1, 2, 999], feature=0).numpy().tolist()
    return {
        "losses": losses,
        "rows": rows_of(layer),
        "read": read,
        "step": layer.stats()["ads"]["step"],
    }


def scenarios(storages, optimizers):
    return {
        f"{storage} {optimizer}": train(storage, optimizer)
        for storage in storages
        for optimizer in optimizers
    }


@pytest.fixture(scope="module")
def alone():
    return {optimizer: train("one", optimizer) for optimizer in OPTIMIZERS}


EXACT = ("sharded", "replicated")
# Ranks, and optimizers: four ranks take long.
JOBS = [
    (2, list(OPTIMIZERS)),
    pytest.param((4, list(OPTIMIZERS)), marks=pytest.mark.soak),
]


@pytest.fixture(scope="module", params=JOBS, ids=str)
def job(request):
    return request.param


@pytest.fixture(scope="module")
def found(run_ranks, job):
    ranks, optimizers = job
    return run_ranks(ranks, __file__, "scenarios", EXACT, optimizers)


@pytest.mark.multiprocess
@pytest.mark.parametrize("storage", EXACT)
def test_the_loss_curve_is_that_of_one_process(found, job, alone, storage):
    for optimizer in job[1]:
        expected = alone[optimizer]
        for of_rank in found:
            result = of_rank[f"{storage} {optimizer}"]
            np.testing.assert_allclose(result["losses"], expected["losses"], 2e-4, 2e-5)
            np.testing.assert_allclose(result["read"], expected["read"], 2e-3, 2e-4)
            assert result["step"] == STEPS


@pytest.mark.multiprocess
def test_each_row_is_on_one_rank(found, job, alone):
    for optimizer in job[1]:
        expected = alone[optimizer]["rows"]
        parts = [of_rank[f"sharded {optimizer}"]["rows"] for of_rank in found]
        together = {key: vector for part in parts for key, vector in part.items()}
        assert sum(map(len, parts)) == len(together)
        assert set(together) == set(expected)
        for key, vector in together.items():
            np.testing.assert_allclose(vector, expected[key], 2e-3, 2e-4)
        # None has much more than its share.
        assert max(map(len, parts)) < 1.5 * len(together) / len(parts)


@pytest.mark.multiprocess
def test_replicas_are_equal_to_the_bit(found, job):
    for optimizer in job[1]:
        first, *others = (
            of_rank[f"replicated {optimizer}"]["rows"] for of_rank in found
        )
        assert len(first) > 100
        assert all(rows == first for rows in others)


@pytest.mark.soak
@pytest.mark.multiprocess
def test_half_of_the_bits_do_nearly(run_ranks, alone):
    expected = alone["adagrad"]["losses"]
    wires = {"float16": 5e-3, "bfloat16": 5e-2}
    for of_rank in run_ranks(2, __file__, "scenarios", list(wires), ["adagrad"]):
        for wire, tolerance in wires.items():
            losses = of_rank[f"{wire} adagrad"]["losses"]
            np.testing.assert_allclose(losses, expected, tolerance)
            # Not to the last bit: something was rounded.
            assert np.max(np.abs(np.array(losses) - expected)) > 1e-5
