"""Training steps of a job that is pinned, or not: run by `tfctr run` or `horovodrun`.

`python -m tfctr.bench.workers.topology_ranks OPTIONS FILE`: the options as JSON; rank 0
writes to the file what it measured, and where it ran.
"""

import json
import os
import pathlib
import sys
import time
from typing import Any

import keras
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig, TieredStorage
from tfctr.bench.workers.horovod_ranks import Step, dense_step, own
from tfctr.bench.workers.tensorflow_setup import id_tensors
from tfctr.bench.workers.tfctr_layer import LEARNING_RATES, fill, make_train
from tfctr.bench.workload import Workload
from tfctr.distributed import DistributedOptimizer, ShardedStorage, engine
from tfctr.topology import Placement, Plan, apply
from tfctr.topology.rank_plan import VARIABLE
from tfctr_ops import SparseOptimizer


def step(workload: Workload, placement: Placement | None) -> Step:
    """Lookup, backward and update of a sharded table, then the dense weights."""
    threads = 0 if placement is None else placement.rank.store_threads
    node = None if placement is None else placement.numa_node
    rule = SparseOptimizer("adagrad", learning_rate=LEARNING_RATES["adagrad"])
    layer = DynamicEmbedding(
        TableConfig("table", dim=workload.dim, optimizer=rule, seed=0),
        storage=ShardedStorage(TieredStorage(num_threads=threads, numa_node=node)),
    )
    fill(layer, workload)
    sparse = make_train(layer)
    dense = dense_step(DistributedOptimizer(keras.optimizers.Adam(1e-3)))
    batches, gradient = id_tensors(workload), tf.constant(workload.gradient())

    def train(i: int) -> None:
        sparse(batches[own(i) % len(batches)], gradient)
        dense(i)

    return train


def measure(train: Step, steps: int, untimed: int) -> list[float]:
    """The milliseconds of steps; all ranks begin each together."""
    found = []
    for i in range(untimed + steps):
        engine.barrier("begin")
        start = time.perf_counter()
        train(i)
        engine.barrier("end")
        found.append((time.perf_counter() - start) * 1e3)
    return found[untimed:]


def main(options: str, file: str) -> None:
    asked: dict[str, Any] = json.loads(options)
    placement = None
    if VARIABLE in os.environ:
        placement = apply(Plan.from_environment())
    train = step(Workload(**asked["workload"]), placement)
    found = {
        "ms": measure(train, asked["steps"], asked["untimed"]),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": None if placement is None else placement.memory_policy,
    }
    if engine.is_main():
        pathlib.Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
