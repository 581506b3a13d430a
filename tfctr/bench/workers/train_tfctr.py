"""tfctr's `DeepFM`, one training step at a time, on batches that never come twice.

The kinds of cases: `"whole"`, the model's training step; `"lookahead"`, the same on a
dataset whose rows are brought up in advance; `"sparse"`, lookup, backward and update of
the model's tables alone. The tables hold every id before the first step, and memory
what steps have left there.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_layers import DynamicEmbedding, TieredStorage
from keras_layers.dynamic_embedding import layers_of
from tfctr.bench.workers import deep_fm
from tfctr.bench.workers.fit_tfctr import make_model
from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import SPARSE, WHOLE, Options
from tfctr.bench.workers.reading import ReadCounter
from tfctr.bench.workers.tensorflow_setup import all_ids, limit_threads
from tfctr.bench.workers.tfctr_layer import ROWS_AT_ONCE
from tfctr.bench.workload import Workload
from tfctr.data import lookahead

LOOKAHEAD = "lookahead"
BATCHES_AHEAD = 2
WARM_UP = 8
# Steps after which memory holds the rows that are used most, and after how many times
# as many files are compacted as fast as they grow. Past the page cache that would take
# minutes, and there the reads take nearly all of the time.
SETTLING_STEPS, COMPACTING_ROUNDS = 40, 16
# Each kind has batches of its own: those of another one would find their rows here.
SEEDS = {SPARSE: 1000, WHOLE: 2000, LOOKAHEAD: 3000}
SETTLING_SEED = 4000


def make_sparse_train(layers: Sequence[DynamicEmbedding]) -> Any:
    """Lookup, backward and update of all layers, for ids of shape `(n, fields)`."""

    @tf.function(autograph=False, reduce_retracing=True)
    def train(ids: tf.Tensor) -> None:
        for layer in layers:
            with tf.GradientTape() as tape:
                vectors = layer({"ids": ids}, training=True)["ids"]
            weights = [variable.value for variable in layer.trainable_variables]
            gradient = tf.fill(tf.shape(vectors), 0.01)
            tape.gradient(vectors, weights, output_gradients=gradient)

    return train


def sparse_step(train: Any, workload: Workload) -> Step:
    batches = [tf.constant(batch) for batch in workload.batches()]
    return lambda i: train(batches[i % len(batches)])


def whole_step(
    model: keras.Model, workload: Workload, layers: Sequence[DynamicEmbedding] = ()
) -> Step:
    """One step of the loop that `fit` runs; `layers` bring up their rows in advance."""
    inputs = {
        "ids": workload.batches(),
        "dense": workload.dense_features(deep_fm.NUM_DENSE),
    }
    clicks = workload.labels()[:, :, None]
    dataset = tf.data.Dataset.from_tensor_slices((inputs, clicks)).repeat()
    if layers:
        dataset = lookahead(dataset, layers, BATCHES_AHEAD)
    batches = iter(dataset)
    model.make_train_function()
    return lambda i: model.train_function(batches)


def fresh(workload: Workload, seed: int, steps: int) -> Workload:
    return dataclasses.replace(workload, num_batches=steps, seed=workload.seed + seed)


def open_cases(options: Options) -> Cases:
    # With one, TensorFlow would train and bring up rows in turn.
    limit_threads(options.threads, ops_at_once=2)
    (workload,), (optimizer,) = options.workloads.values(), options.optimizers
    model = make_model(workload, optimizer, TieredStorage(**options.storage))
    layers = layers_of(model)
    train = make_sparse_train(layers)
    for ids in all_ids(workload, ROWS_AT_ONCE // workload.num_fields):
        train(ids)
    compacts = "ssd" in options.storage and "direct_reads" not in options.storage
    for part in range(COMPACTING_ROUNDS if compacts else 1):
        batches = fresh(workload, SETTLING_SEED + part, SETTLING_STEPS)
        settling = sparse_step(train, batches)
        for i in range(SETTLING_STEPS):
            settling(i)

    counter = ReadCounter(lambda: _total(layers, "rows_read"), WARM_UP)
    steps = {}
    for case in options.cases():
        data = fresh(workload, SEEDS[case.kind], options.steps + WARM_UP)
        step = (
            sparse_step(train, data)
            if case.kind == SPARSE
            else whole_step(model, data, layers if case.kind == LOOKAHEAD else ())
        )
        steps[case.name] = counter.counted(case.name, step)

    def facts() -> dict[str, Any]:
        tables = {name: s for layer in layers for name, s in layer.stats().items()}
        return {"counts": counter.facts(), "tables": tables}

    return Cases(
        steps=steps,
        versions={"tensorflow": tf.__version__, "keras": keras.__version__},
        warm_up=WARM_UP,
        facts=facts,
    )


def _total(layers: Sequence[DynamicEmbedding], count: str) -> int:
    return sum(stats[count] for layer in layers for stats in layer.stats().values())
