"""One find and one insert of whole rows in TFRA's table: what a fused step must take.

Nothing else is timed: the batch is made of distinct keys, in the order in which
`TfraStorage` asks for them, and the rows that were found are put back as they are.
"""

import importlib.metadata

import tensorflow as tf

from keras_layers.storage.tfra import import_tfra
from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import Case, Options
from tfctr.bench.workers.tensorflow_setup import limit_threads
from tfctr_ops import distinct_keys

# Floats of a row of 16 weights: weights and slots, and what TfraStorage counts.
SLOTS = {"adagrad": 1, "adam": 2}
NUM_COUNTERS = 3
ROWS_AT_ONCE = 100_000


def make_step(case: Case) -> Step:
    workload = case.workload
    width = workload.dim * (1 + SLOTS[case.optimizer]) + NUM_COUNTERS
    table = import_tfra().get_variable(
        case.name.replace("/", "_"),
        dim=width,
        devices=["/CPU:0"],
        initializer=0.0,
        init_size=workload.num_rows,
    )
    for start in range(0, workload.num_rows, ROWS_AT_ONCE):
        ids = tf.range(
            start, min(start + ROWS_AT_ONCE, workload.num_rows), dtype=tf.int64
        )
        keys = distinct_keys(ids, tf.constant([0]), 1).words
        table.upsert(keys, tf.zeros((len(keys), width)))

    @tf.function(autograph=False, reduce_retracing=True)
    def find_and_insert(keys: tf.Tensor) -> tf.Tensor:
        rows, exists = table.lookup(keys, return_exists=True)
        with tf.control_dependencies([table.upsert(keys, rows)]):
            return tf.reduce_all(exists)

    offsets = workload.offsets()
    batches = [
        distinct_keys(tf.reshape(ids + offsets, [-1]), tf.constant([0]), 1).words
        for ids in workload.batches()
    ]
    return lambda i: bool(find_and_insert(batches[i % len(batches)]))


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    return Cases(
        steps={case.name: make_step(case) for case in options.cases()},
        versions={
            "tensorflow": tf.__version__,
            "tfra": importlib.metadata.version("tensorflow-recommenders-addons"),
        },
    )
