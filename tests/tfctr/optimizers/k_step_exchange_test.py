"""`KStepAdam` on real ranks: when they exchange, what, and what comes of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr import distributed
from tfctr.distributed import engine
from tfctr.optimizers import KStepAdam

FROZEN, WEIGHTS, MOMENTS = "frozen_denominator", "parameters", "parameters_and_moments"
MODES = (FROZEN, WEIGHTS, MOMENTS)

# What one rank does. All ranks call the same functions, in the same order.


class Calls:
    """Counts the exchanges of the ranks, and what a rank gives to each."""

    def __enter__(self):
        self.names, self.bytes, self.all_reduce = [], [], engine.all_reduce

        def count(tensors, name, average=False, wire_dtype=None):
            self.names.append(name)
            self.bytes.append(sum(one.numpy().nbytes for one in tensors))
            return self.all_reduce(tensors, name, average, wire_dtype)

        engine.all_reduce = count
        return self

    def __exit__(self, *error):
        engine.all_reduce = self.all_reduce


def value(variable):
    return keras.ops.convert_to_numpy(variable).tolist()


def count_merges(merge):
    """Two variables beside each other, one of them with a statistic."""
    weights = [
        keras.Variable(np.full((3, 2), 1.0 + distributed.rank()), dtype="float32"),
        keras.Variable(np.ones(5), dtype="float32"),
    ]
    statistic = keras.Variable([1.0 + distributed.rank()], trainable=False)
    count = keras.Variable([distributed.rank()], dtype="int64", trainable=False)
    warmup_merges = 2 if merge == FROZEN else None
    optimizer = KStepAdam(1e-2, k=4, merge=merge, warmup_merges=warmup_merges)
    merged = []
    with Calls() as calls:
        for step in range(1, 12):
            before = len(calls.names)
            optimizer.apply([tf.ones((3, 2)), tf.ones(5)], weights)
            if len(calls.names) > before:
                merged.append(step)
        for _ in range(2):
            optimizer.merge()
        optimizer.average_also([statistic, count])
        optimizer.apply([tf.ones((3, 2)), tf.ones(5)], weights)
        optimizer.merge()
        return {
            "merged": merged,
            "names": calls.names,
            "bytes": calls.bytes,
            "merges": optimizer.merges,
            "merge_bytes": optimizer.merge_bytes,
            "statistic": value(statistic),
            "count": value(count),
        }


def replicas(merge):
    """float32, where sums depend on their order: the bits after a merge."""
    variable = keras.Variable(np.linspace(0.1, 1.0, 7), dtype="float32")
    optimizer = KStepAdam(1e-2, k=3, merge=merge)
    draws = np.random.default_rng(distributed.rank()).normal(size=(9, 7))
    for draw in draws:
        optimizer.apply([tf.constant(draw, tf.float32)], [variable])
    optimizer.merge()
    return {
        "replicated": [value(one) for one in optimizer.replicated_variables],
        "m": [value(one) for one in optimizer.variables if "momentum" in one.name],
    }


def train_beside_a_table():
    """The table's gradients are constant, and those of the other ranks' rows zero."""
    rank = distributed.rank()
    table = TableConfig("ads", 2, keras.optimizers.SGD(0.5), initializer="ones")
    layer = DynamicEmbedding(FeatureConfig(table))
    weight = keras.Variable(1.0, dtype="float32")
    optimizer = KStepAdam(0.1, k=2, merge=WEIGHTS)
    for _ in range(4):
        with tf.GradientTape() as tape:
            rows = layer(np.array([7]), training=True)
            loss = (rank + 1.0) * (tf.reduce_sum(rows) + weight)
        variables = [weight, *layer.trainable_variables]
        optimizer.apply(tape.gradient(loss, variables), variables)
    return {"rows": value(layer.read_rows([7])), "weight": value(weight)}


def scenarios():
    return {
        "counts": {merge: count_merges(merge) for merge in MODES},
        "replicas": {merge: replicas(merge) for merge in MODES},
        "table": train_beside_a_table(),
    }


@pytest.fixture
def found(of_ranks):
    return of_ranks(__file__)


# What is exchanged.


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("merge", "merged", "tensors"),
    [(FROZEN, [1, 2, 5, 9], 2), (WEIGHTS, [4, 8], 1), (MOMENTS, [4, 8], 3)],
)
def test_merges_are_counted_with_their_bytes(found, merge, merged, tensors):
    weights = 4 * (3 * 2 + 5)
    for of_rank in found:
        counts = of_rank["counts"][merge]
        assert counts["merged"] == merged
        # Step 12 is scheduled without a frozen denominator, and forced with one. Once
        # the last step has merged, `merge` does nothing.
        ends = {"scheduled": 0, "forced": 2} if merge == FROZEN else None
        ends = ends or {"scheduled": 1, "forced": 1}
        merges = {**ends, "scheduled": len(merged) + ends["scheduled"]}
        assert counts["merges"] == merges
        exchanges = 2 if merge == FROZEN else 1
        assert len(counts["names"]) == exchanges * (len(merged) + 2)
        statistic = 4
        assert sum(counts["bytes"]) == tensors * weights * (len(merged) + 2) + statistic
        assert counts["merge_bytes"] == tensors * weights + statistic


@pytest.mark.multiprocess
@pytest.mark.parametrize("merge", MODES)
def test_float_statistics_are_averaged_and_counts_are_not(found, merge):
    for rank, of_rank in enumerate(found):
        assert of_rank["counts"][merge]["statistic"] == [1.5]
        assert of_rank["counts"][merge]["count"] == [rank]


@pytest.mark.multiprocess
@pytest.mark.parametrize("merge", MODES)
def test_replicas_are_equal_to_the_bit_after_a_merge(found, merge):
    first, second = (of_rank["replicas"][merge] for of_rank in found)
    assert first["replicated"] == second["replicated"]
    # x and s; x; x, m and v.
    count = {FROZEN: 2, WEIGHTS: 1, MOMENTS: 3}[merge]
    assert len(first["replicated"]) == count
    assert (first["m"] == second["m"]) == (merge == MOMENTS)


@pytest.mark.multiprocess
def test_rows_of_a_table_are_left_to_its_optimizer(found):
    for rank, of_rank in enumerate(found):
        row = 1.0 - 4 * 0.5 * (rank + 1.0)
        assert of_rank["table"]["rows"] == [[row, row]]
        # Adam on constant gradients moves by the learning rate.
        np.testing.assert_allclose(of_rank["table"]["weight"], 0.6, atol=1e-6)
