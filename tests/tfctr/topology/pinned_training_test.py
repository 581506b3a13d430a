"""Pinning changes where training runs, and none of its numbers."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tfctr.topology import Machine, Plan, plan

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Trains a little on ids, rows and dense weights. What it prints tells every bit.
TRAIN = """
import json, os, sys
import keras, numpy as np
from tfctr.topology import Plan, apply
from tfctr.topology.rank_plan import VARIABLE

placement = None
if VARIABLE in os.environ:
    placement = apply(Plan.from_environment())
from keras_layers import DynamicEmbedding, TableConfig, TieredStorage
from tfctr.distributed import DistributedOptimizer, ShardedStorage, engine
from tfctr_ops import SparseOptimizer

rank, size = engine.rank(), engine.size()
keras.utils.set_random_seed(5)
rule = SparseOptimizer("adagrad", learning_rate=0.1)
storage = TieredStorage(numa_node=placement.numa_node if placement else None)
layer = DynamicEmbedding(
    TableConfig("t", dim=8, optimizer=rule, seed=1), storage=ShardedStorage(storage)
)
inputs = keras.Input((4,), dtype="int64")
hidden = keras.layers.Flatten()(layer(inputs))
hidden = keras.layers.Dense(16, activation="relu")(hidden)
model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
model.compile(
    DistributedOptimizer(keras.optimizers.Adam(0.01)), "binary_crossentropy"
)
rng = np.random.default_rng(7)
ids = rng.integers(0, 3000, (2048, 4))
labels = (rng.random((2048, 1)) < 0.3).astype("float32")
mine = slice(rank, None, size)
losses = [
    float(model.train_on_batch(ids[i : i + 256][mine], labels[i : i + 256][mine]))
    for i in range(0, 2048, 256)
]
vectors = layer(ids[:256], training=False)
weights = [variable.numpy().ravel().tolist() for variable in model.trainable_variables]
if rank == 0:
    print("\\n" + json.dumps({
        "losses": losses,
        "numbers": sum(weights, np.asarray(vectors).ravel().tolist()),
        "cpus": sorted(os.sched_getaffinity(0)),
    }), flush=True)
"""


def start(*command, **env):
    free = {name: x for name, x in os.environ.items() if name != "TFCTR_PLAN"}
    return subprocess.Popen(
        [*command, sys.executable, "-c", TRAIN],
        cwd=ROOT,
        env={**free, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """What the process, or rank 0 of the job, has printed."""
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    (line,) = [x for x in out.splitlines() if '"losses"' in x]
    # horovodrun writes the rank before it.
    return json.loads(line[line.index("{") :])


def test_a_pinned_process_finds_the_same_numbers():
    machine = Machine.read()
    rank = plan(machine, min(2, len(machine.cpus))).ranks[0]
    # At once, since starting takes longest. With the thread counts of the plan, the
    # sums are the same sums; with others, TensorFlow cuts matrices into other parts and
    # adds their products in another order.
    threads = {
        "TF_NUM_INTRAOP_THREADS": str(rank.intra_op_threads),
        "TF_NUM_INTEROP_THREADS": str(rank.inter_op_threads),
    }
    jobs = [
        start(TFCTR_PLAN=Plan((rank,)).to_json(indent=None)),
        start(**threads),
    ]
    pinned, free = [finish(job) for job in jobs]
    assert pinned["cpus"] == list(rank.cpus)
    assert free["cpus"] == list(machine.cpus)
    assert pinned["losses"] == free["losses"]
    assert pinned["numbers"] == free["numbers"]
    assert len(set(pinned["losses"])) == 8


@pytest.mark.soak
@pytest.mark.multiprocess
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_pinned_job_finds_the_same_numbers(horovodrun, num_ranks):
    horovod = str(pathlib.Path(sys.executable).with_name("horovodrun"))
    run = [sys.executable, "-m", "tfctr", "run"]
    pinned = finish(start(*run, "-np", str(num_ranks), "--"))
    # As people start it: with threads of its own choice.
    free = finish(start(horovod, "-np", str(num_ranks)))
    machine = Machine.read()
    expected = plan(machine, num_ranks, share_cpus=True).ranks[0].cpus
    assert pinned["cpus"] == list(expected)
    assert free["cpus"] == list(machine.cpus)
    # The order of sums depends on the number of threads, see above.
    np.testing.assert_allclose(pinned["losses"], free["losses"], rtol=1e-5)
    np.testing.assert_allclose(pinned["numbers"], free["numbers"], atol=1e-4)
