"""TFRA as its users write it: its layer, its optimizer wrapper, Keras 2.

Keras 2 is `tf_keras`, kept in a folder that only this process sees. The optimizers
are the legacy ones: any other gives each table the slots of all tables, and TFRA gets
slower with every table. Each slot is a table of its own, filled by the steps.
"""

import importlib.metadata

import numpy as np
import tensorflow as tf
import tf_keras  # type: ignore[import-not-found]
from tensorflow_recommenders_addons import dynamic_embedding as de

from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import Case, Options
from tfctr.bench.workers.tensorflow_setup import id_tensors, limit_threads

OPTIMIZERS = {
    "adagrad": lambda: tf_keras.optimizers.legacy.Adagrad(0.01),
    "adam": lambda: tf_keras.optimizers.legacy.Adam(0.001),
}
ROWS_AT_ONCE = 200_000


def versions() -> dict[str, str]:
    return {
        "tensorflow": tf.__version__,
        "tfra": importlib.metadata.version("tensorflow-recommenders-addons"),
        "tf_keras": importlib.metadata.version("tf_keras"),
    }


def make_layer(name: str, dim: int, num_rows: int) -> de.keras.layers.Embedding:
    """A layer with room for, and rows of, the keys 0 to `num_rows - 1`."""
    layer = de.keras.layers.Embedding(
        dim,
        initializer=tf.random_normal_initializer(stddev=0.05),
        devices=["/CPU:0"],
        init_capacity=num_rows,
        name=name,
    )
    rows = tf.random.normal((ROWS_AT_ONCE, dim), stddev=0.05)
    for start in range(0, num_rows, ROWS_AT_ONCE):
        keys = np.arange(start, min(start + ROWS_AT_ONCE, num_rows))
        layer.params.upsert(keys, rows[: keys.size])
    return layer


def make_step(case: Case) -> Step:
    workload = case.workload
    name = case.name.replace("/", "_")
    layer = make_layer(name, workload.dim, workload.num_rows)
    optimizer = de.DynamicEmbeddingOptimizer(OPTIMIZERS[case.optimizer]())
    offsets = tf.constant(workload.offsets())
    gradient = tf.constant(workload.gradient())

    @tf.function(autograph=False)
    def train(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            vectors = layer(ids + offsets)
        weights = layer.trainable_variables
        gradients = tape.gradient(vectors, weights, output_gradients=gradient)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return vectors

    ids = id_tensors(workload)
    return lambda i: train(ids[i % len(ids)])


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    return Cases(
        steps={case.name: make_step(case) for case in options.cases()},
        versions=versions(),
    )
