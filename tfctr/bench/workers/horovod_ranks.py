"""Steps on several ranks: run by `horovodrun`, each rank a process.

`python -m tfctr.bench.workers.horovod_ranks OPTIONS FILE`: the options as JSON; rank 0
writes what it measured to the file. All ranks do the same steps, case after case, round
after round, so that the cases are measured side by side.
"""

import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig
from tfctr.bench.workers.tensorflow_setup import id_tensors, limit_threads
from tfctr.bench.workers.tfctr_layer import LEARNING_RATES, fill, make_train
from tfctr.bench.workload import Workload
from tfctr.distributed import DistributedOptimizer, ShardedStorage, engine
from tfctr.optimizers import KStepAdam
from tfctr_ops import SparseOptimizer

Step = Callable[[int], Any]
MERGES = ("frozen_denominator", "parameters")
# Weights of the dense part of the DeepFM of `bench fit`.
DENSE_SHAPES = ((429, 256), (256,), (256, 128), (128,), (128, 1), (1,))


def sparse_step(workload: Workload, wire_dtype: str | None) -> Step:
    """Lookup, backward and update of a sharded table; each rank has its own batches."""
    rule = SparseOptimizer("adagrad", learning_rate=LEARNING_RATES["adagrad"])
    layer = DynamicEmbedding(
        TableConfig(f"table_{wire_dtype}", dim=workload.dim, optimizer=rule, seed=0),
        storage=ShardedStorage(wire_dtype=wire_dtype),
    )
    fill(layer, workload)
    train = make_train(layer)
    batches, gradient = id_tensors(workload), tf.constant(workload.gradient())
    return lambda i: train(batches[own(i) % len(batches)], gradient)


def all_gather_step(workload: Workload) -> Step:
    """A whole table on each rank, and what Horovod does with its `IndexedSlices`.

    Horovod gathers the values and the indices of all ranks, as they are; the sum over
    equal rows and the update are TensorFlow's.
    """
    table = tf.Variable(
        tf.random.uniform((workload.num_rows, workload.dim), -0.05, 0.05)
    )
    accumulator = tf.Variable(tf.fill(table.shape, 0.1))
    offsets = tf.constant(workload.offsets())
    gradient = tf.constant(workload.gradient().reshape(-1, workload.dim))
    ranks = engine.size()

    @tf.function(autograph=False)
    def train(ids: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(ids + offsets, [-1])
        vectors = tf.gather(table, rows)
        values = engine.all_gather(gradient, "gathered.values") / ranks
        indices = engine.all_gather(rows, "gathered.indices")
        distinct, position = tf.unique(indices)
        summed = tf.math.unsorted_segment_sum(values, position, tf.size(distinct))
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=accumulator.handle,
            lr=LEARNING_RATES["adagrad"],
            epsilon=1e-7,
            grad=summed,
            indices=distinct,
        )
        return vectors

    batches = id_tensors(workload)
    return lambda i: train(batches[own(i) % len(batches)])


def own(step: int) -> int:
    """Another batch for each rank."""
    return step + engine.rank()


def dense_step(optimizer: keras.optimizers.Optimizer) -> Step:
    """A step of the dense weights alone, with a fixed gradient."""
    weights = [keras.Variable(np.zeros(shape, np.float32)) for shape in DENSE_SHAPES]
    optimizer.build(weights)
    gradients = [tf.fill(shape, 0.01) for shape in DENSE_SHAPES]

    @tf.function(autograph=False)
    def train() -> None:
        optimizer.apply(gradients, weights)

    return lambda i: train()


def dense_cases(ks: tuple[int, ...]) -> dict[str, Step]:
    adam = keras.optimizers.Adam(1e-3)
    return {
        "every_step": dense_step(DistributedOptimizer(adam)),
        **{
            f"{merge}/{k}": dense_step(
                KStepAdam(
                    1e-3,
                    k=k,
                    merge=merge,
                    warmup_merges=1 if merge == "frozen_denominator" else 0,
                )
            )
            for merge in MERGES
            for k in ks
        },
    }


def sent_bytes() -> int:
    """What all processes of this machine have sent to each other so far."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    return 0


def measure(
    cases: dict[str, Step], rounds: int, steps: int
) -> dict[str, list[dict[str, float]]]:
    """Milliseconds and bytes of a step, of each case in each round but the first."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, step in cases.items():
            engine.barrier("begin")
            before, start = sent_bytes(), time.perf_counter()
            for i in range(steps):
                step(turn * steps + i)
            seconds = time.perf_counter() - start
            engine.barrier("end")
            if turn > 0:
                found[name].append(
                    {
                        "ms": seconds * 1e3 / steps,
                        "bytes": (sent_bytes() - before) / steps,
                    }
                )
    return found


def main(options: str, file: str) -> None:
    asked = json.loads(options)
    limit_threads(asked["threads"])
    workload = Workload(**asked["workload"])
    sparse = {
        "sharded": sparse_step(workload, None),
        "sharded_float16": sparse_step(workload, "float16"),
        "all_gather": all_gather_step(workload),
    }
    found = measure(sparse, asked["rounds"], asked["sparse_steps"])
    dense = dense_cases(tuple(asked["ks"]))
    found |= measure(dense, asked["rounds"], asked["dense_steps"])
    if engine.is_main():
        pathlib.Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
