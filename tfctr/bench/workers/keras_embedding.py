"""Stock Keras 3: one `keras.layers.Embedding` over all fields, its own optimizer."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import SPARSE, WHOLE, Options
from tfctr.bench.workers.tensorflow_setup import id_tensors, limit_threads
from tfctr.bench.workload import Workload

OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "adagrad": lambda: keras.optimizers.Adagrad(0.01),
    "adam": lambda: keras.optimizers.Adam(0.001),
}


def make_step(workload: Workload, optimizer_name: str) -> Step:
    """Lookup, backward and the optimizer's `apply`, without a model."""
    embedding = keras.layers.Embedding(workload.num_rows, workload.dim)
    embedding.build()
    weights = embedding.trainable_variables
    optimizer = OPTIMIZERS[optimizer_name]()
    optimizer.build(weights)
    offsets = tf.constant(workload.offsets())
    gradient = tf.constant(workload.gradient())

    @tf.function(autograph=False)
    def train(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            vectors = embedding(ids + offsets)
        gradients = tape.gradient(vectors, weights, output_gradients=gradient)
        optimizer.apply(gradients, weights)
        return vectors

    ids = id_tensors(workload)
    return lambda i: train(ids[i % len(ids)])


def make_whole_step(workload: Workload, optimizer_name: str) -> Step:
    """`train_on_batch` of the smallest model: embeddings and one dense output."""
    inputs = keras.Input((workload.num_fields,), dtype="int64")
    rows = keras.layers.Embedding(workload.num_rows, workload.dim)(
        inputs + tf.constant(workload.offsets())
    )
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[optimizer_name](), loss)
    ids, labels = id_tensors(workload), workload.labels()[..., None]
    return lambda i: model.train_on_batch(ids[i % len(ids)], labels[i % len(ids)])


MAKERS = {SPARSE: make_step, WHOLE: make_whole_step}


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    return Cases(
        steps={
            case.name: MAKERS[case.kind](case.workload, case.optimizer)
            for case in options.cases()
        },
        versions={"tensorflow": tf.__version__, "keras": keras.__version__},
        # Its steps are slow, and cost the same whatever the batch.
        warm_up=2,
    )
