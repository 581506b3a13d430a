"""DeepCTR's `DeepFM`, trained by its `fit`, with no regularisation.

One optimizer trains everything, as DeepCTR's models are compiled. `adam` is what its
examples use; `adagrad` is the faster one, since Keras 2 updates its rows sparsely.
"""

import importlib.metadata

import deepctr.models  # type: ignore[import-not-found]
import numpy as np
import tensorflow as tf
from deepctr.feature_column import (  # type: ignore[import-not-found]
    DenseFeat,
    SparseFeat,
)

from tfctr.bench.workers import deep_fm
from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import Case, Options
from tfctr.bench.workers.tensorflow_setup import limit_threads, steady
from tfctr.bench.workload import Workload

OPTIMIZERS = {
    "adagrad": lambda: tf.keras.optimizers.Adagrad(deep_fm.SPARSE_LEARNING_RATE),
    "adam": lambda: tf.keras.optimizers.Adam(deep_fm.DENSE_LEARNING_RATE),
}


def make_dataset(workload: Workload) -> tf.data.Dataset:
    """The fixed batches for ever: a dict of one column per feature, and clicks."""
    ids = workload.batches().astype(np.int32)
    dense = workload.dense_features(deep_fm.NUM_DENSE)
    id_columns = {f"id_{f}": ids[:, :, f, None] for f in range(ids.shape[-1])}
    numbers = {f"number_{f}": dense[:, :, f, None] for f in range(dense.shape[-1])}
    columns = {**id_columns, **numbers}
    clicks = workload.labels()[:, :, None]
    return steady(tf.data.Dataset.from_tensor_slices((columns, clicks)).repeat())


def make_step(case: Case, batches: int) -> Step:
    workload = case.workload
    columns = [
        SparseFeat(f"id_{f}", workload.rows_per_field, embedding_dim=workload.dim)
        for f in range(workload.num_fields)
    ] + [DenseFeat(f"number_{f}", 1) for f in range(deep_fm.NUM_DENSE)]
    model = deepctr.models.DeepFM(
        columns,
        columns,
        dnn_hidden_units=deep_fm.HIDDEN_UNITS,
        l2_reg_linear=0,
        l2_reg_embedding=0,
    )
    model.compile(OPTIMIZERS[case.optimizer](), "binary_crossentropy")
    dataset = make_dataset(workload)
    return lambda i: model.fit(dataset, steps_per_epoch=batches, verbose=0)


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    return Cases(
        steps={
            case.name: make_step(case, options.batches_per_step)
            for case in options.cases()
        },
        versions={
            "tensorflow": tf.__version__,
            "deepctr": importlib.metadata.version("deepctr"),
        },
        warm_up=1,
    )
