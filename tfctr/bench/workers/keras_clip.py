"""Stock Keras embeddings, trained by Adam and by `CowClip` around the same Adam."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfctr.bench.workers.loop import Cases
from tfctr.bench.workers.options import Options
from tfctr.bench.workers.tensorflow_setup import id_tensors, limit_threads
from tfctr.bench.workload import Workload
from tfctr.optimizers import CowClip

Layers = list[keras.layers.Embedding]


def one_table(workload: Workload, ids: Any) -> tuple[Layers, Any]:
    """One table of all fields: its layer, and the vectors `(batch, fields, dim)`."""
    layer = keras.layers.Embedding(workload.num_rows, workload.dim)
    return [layer], layer(ids + tf.constant(workload.offsets()))


def field_tables(workload: Workload, ids: Any) -> tuple[Layers, Any]:
    """A table for each field, as models of click logs have them."""
    layers = [
        keras.layers.Embedding(workload.rows_per_field, workload.dim)
        for _ in range(workload.num_fields)
    ]
    vectors = [layer(ids[:, field]) for field, layer in enumerate(layers)]
    return layers, keras.layers.Concatenate()(vectors)


MODELS: dict[str, Callable[[Workload, Any], tuple[Layers, Any]]] = {
    "one_table": one_table,
    "field_tables": field_tables,
}


def cow_clip(layers: Layers) -> CowClip:
    """Which clips most rows."""
    return CowClip(adam(layers), layers, ratio=2e-4, floor=1e-5, l2=1e-5)


def adam(_: Layers) -> keras.Optimizer:
    return keras.optimizers.Adam(0.001)


OPTIMIZERS: dict[str, Callable[[Layers], keras.Optimizer]] = {
    "adam": adam,
    "cow_clip": cow_clip,
}


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    models = {}
    for case in options.cases():
        inputs = keras.Input((case.workload.num_fields,), dtype="int64")
        layers, vectors = MODELS[case.label](case.workload, inputs)
        outputs = keras.layers.Dense(1)(keras.layers.Flatten()(vectors))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(OPTIMIZERS[case.optimizer](layers), loss)
        models[case.name] = model
    batches = {
        label: (id_tensors(workload), workload.labels()[..., None])
        for label, workload in options.workloads.items()
    }

    def step_of(model: keras.Model, label: str) -> Callable[[int], object]:
        ids, labels = batches[label]
        return lambda i: model.train_on_batch(ids[i % len(ids)], labels[i % len(ids)])

    def facts() -> dict[str, Any]:
        shares = {
            case.label: list(models[case.name].optimizer.clipped_share.values())
            for case in options.cases()
            if case.optimizer == "cow_clip"
        }
        return {
            "clipped_share": {
                label: sum(values) / len(values) for label, values in shares.items()
            }
        }

    return Cases(
        steps={
            case.name: step_of(models[case.name], case.label)
            for case in options.cases()
        },
        versions={"tensorflow": tf.__version__, "keras": keras.__version__},
        warm_up=2,
        facts=facts,
    )
