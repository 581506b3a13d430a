"""Results are equal to the bit, whatever the threads and the order of first arrival.

Run as a program, with a number of threads as its argument, this file prints what a
process gives that has so many.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import EmbeddingStore, RowInitializer, SparseOptimizer, StoreConfig

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIP = {"clip_ratio": 0.5, "clip_floor": 0.1, "l2_penalty": 1e-3}
VARIANTS = {
    **{kind: {} for kind in ("sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl")},
    "adagrad, clipped": CLIP,
    "adam, clipped": CLIP,
}
# 24,000 keys a batch: several blocks to partition, several shards for each thread.
FEATURES = [0, 1, 0]  # No tensor: making one would start TensorFlow.
BATCH = 3 * 8000
DIM = 18


def make_store(variant, num_threads):
    kind, clip = variant.split(",")[0], VARIANTS[variant]
    config = StoreConfig(
        "users",
        DIM,
        SparseOptimizer(kind, bias_correction="row", weight_decay=0.01, **clip),
        RowInitializer("truncated_normal", 0.0, 0.05),
        feature_seeds=(1, 2),
        default_row=(0.0,) * DIM,
        num_threads=num_threads,
    )
    return EmbeddingStore(config)


def steps():
    """Batches with heavy duplicates, and gradients whose sums depend on the order."""
    rng = np.random.default_rng(0)
    for _ in range(4):
        ids = rng.zipf(1.2, BATCH) % 20_000 - 10_000
        scales = 10.0 ** rng.integers(-4, 3, (BATCH, 1))
        gradients = rng.normal(size=(BATCH, DIM)) * scales
        yield tf.constant(ids), tf.constant(gradients, tf.float32)


def fingerprint(variant, num_threads=0, arrivals=()):
    """Digests all that training returns, and the rows at its end."""
    store = make_store(variant, num_threads)
    for ids in arrivals:
        store.lookup(ids, FEATURES)
    digest = hashlib.sha256()
    for ids, gradients in steps():
        rows, ticket = store.lookup(ids, FEATURES)
        store.update(ticket, gradients, 0.05)
        digest.update(rows.numpy().tobytes())
        digest.update(store.read(ids, FEATURES).numpy().tobytes())
    exported = [column.numpy() for column in store.export_rows()]
    # Where rows lie may depend on their arrival.
    order = np.lexsort(exported[:2])
    for column in exported:
        digest.update(column[order].tobytes())
    return digest.hexdigest()


def fingerprints(**options):
    return {variant: fingerprint(variant, **options) for variant in VARIANTS}


@pytest.fixture(scope="module")
def of_one_thread():
    return fingerprints(num_threads=1)


@pytest.mark.parametrize("num_threads", [0, 1, 2])
def test_results_do_not_depend_on_the_number_of_threads(of_one_thread, num_threads):
    assert fingerprints(num_threads=num_threads) == of_one_thread


def test_results_do_not_depend_on_the_order_of_first_arrival(of_one_thread):
    ids = tf.concat([ids for ids, _ in steps()], 0)
    shuffled = tf.constant(np.random.default_rng(1).permutation(ids))
    arrivals = [*tf.split(shuffled, 4), tf.range(-9999, 9999, dtype=tf.int64)]
    assert fingerprints(arrivals=arrivals) == of_one_thread


@pytest.mark.parametrize("level", [None, "baseline"])
def test_four_threads_and_older_processors_give_the_same(of_one_thread, level):
    # TensorFlow fixes its threads when it starts, and the store its CPU level.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if level is not None:
        environment["TFCTR_CPU_LEVEL"] = level
    output = subprocess.run(
        [sys.executable, __file__, "4"],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    assert json.loads(output) == of_one_thread


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
    print(json.dumps(fingerprints()))
