"""tfctr's `DynamicEmbedding`, whose tables hold every id of the workload at the start.

The rows are brought in by training steps on all ids, since that is how a table is
filled in use. The model of the whole step shares the layer of the sparse step.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_layers import DynamicEmbedding, Storage, TableConfig
from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import SPARSE, WHOLE, Options
from tfctr.bench.workers.tensorflow_setup import all_ids, id_tensors, limit_threads
from tfctr.bench.workload import Workload
from tfctr_ops import SparseOptimizer

LEARNING_RATES = {"adagrad": 0.01, "rowwise_adagrad": 0.01, "adam": 0.001}
DENSE_OPTIMIZERS = {"adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}
# Rows of one filling step, over all fields: about as many as of a timed step.
ROWS_AT_ONCE = 100_000


def make_layer(
    name: str,
    dim: int,
    optimizer: str,
    storage: Storage | None = None,
    clip: dict[str, Any] | None = None,
) -> DynamicEmbedding:
    rate = LEARNING_RATES[optimizer]
    rule = SparseOptimizer(optimizer, learning_rate=rate, **(clip or {}))
    return DynamicEmbedding(TableConfig(name, dim=dim, optimizer=rule), storage=storage)


def make_train(layer: DynamicEmbedding) -> tf.types.experimental.PolymorphicFunction:
    """Lookup, backward and update, as one function of ids and their gradient."""

    @tf.function(autograph=False, reduce_retracing=True)
    def train(ids: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            vectors = layer(ids, training=True)
        weights = [variable.value for variable in layer.trainable_variables]
        tape.gradient(vectors, weights, output_gradients=gradient)
        return vectors

    return train


def fill(layer: DynamicEmbedding, workload: Workload) -> None:
    """Trains on every id of every field once, so that each has a row."""
    train = make_train(layer)
    examples = ROWS_AT_ONCE // workload.num_fields
    gradient = tf.fill((examples, workload.num_fields, workload.dim), 0.01)
    for ids in all_ids(workload, examples):
        train(ids, gradient[: len(ids)])


def sparse_step(layer: DynamicEmbedding, workload: Workload) -> Step:
    train = make_train(layer)
    ids = id_tensors(workload)
    gradient = tf.constant(workload.gradient())
    return lambda i: train(ids[i % len(ids)], gradient)


def whole_step(layer: DynamicEmbedding, workload: Workload, optimizer: str) -> Step:
    """`train_on_batch` of the same model as stock Keras is measured with."""
    inputs = keras.Input((workload.num_fields,), dtype="int64")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs)))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(DENSE_OPTIMIZERS[optimizer](), loss)
    ids, labels = id_tensors(workload), workload.labels()[..., None]
    return lambda i: model.train_on_batch(ids[i % len(ids)], labels[i % len(ids)])


def open_cases(
    options: Options,
    storage: Storage | None = None,
    clip: dict[str, Any] | None = None,
) -> Cases:
    limit_threads(options.threads)
    steps = {}
    layers: dict[tuple[str, str], DynamicEmbedding] = {}
    for case in options.cases():
        key = (case.label, case.optimizer)
        if key not in layers:
            name = f"{case.label}_{case.optimizer}"
            layers[key] = make_layer(
                name, case.workload.dim, case.optimizer, storage, clip
            )
            fill(layers[key], case.workload)
        if case.kind == SPARSE:
            steps[case.name] = sparse_step(layers[key], case.workload)
        if case.kind == WHOLE:
            steps[case.name] = whole_step(layers[key], case.workload, case.optimizer)
    return Cases(
        steps=steps,
        versions={"tensorflow": tf.__version__, "keras": keras.__version__},
        facts=lambda: _facts(layers),
    )


def _facts(layers: dict[tuple[str, str], DynamicEmbedding]) -> dict[str, Any]:
    stats = {
        "/".join(key): next(iter(layer.stats().values()))
        for key, layer in layers.items()
    }
    rows = {name: of_table["known_rows"] for name, of_table in stats.items()}
    shares = {name: of_table["clipped_share"] for name, of_table in stats.items()}
    return {"rows": rows} | ({"clipped_share": shares} if any(shares.values()) else {})
