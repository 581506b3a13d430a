"""tfctr's `DeepFM` by `model.fit`; its tables hold every id before the first step.

Adam trains the dense layers; the rows have the optimizer of the case.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_layers import Storage
from tfctr.bench.workers import deep_fm
from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import Case, Options
from tfctr.bench.workers.tensorflow_setup import all_ids, limit_threads, steady
from tfctr.bench.workers.tfctr_layer import LEARNING_RATES, ROWS_AT_ONCE
from tfctr.bench.workload import Workload
from tfctr.feature import Feature
from tfctr.models import DeepFM, DynamicTables
from tfctr_ops import SparseOptimizer


def make_model(
    workload: Workload, optimizer: str, storage: Storage | None = None
) -> keras.Model:
    rule = SparseOptimizer(optimizer, learning_rate=LEARNING_RATES[optimizer])
    model = DeepFM(
        [
            Feature("ids", "int64", width=workload.num_fields),
            Feature("dense", "float32", width=deep_fm.NUM_DENSE),
        ],
        DynamicTables(rule, storage),
        dim=workload.dim,
        hidden_units=deep_fm.HIDDEN_UNITS,
    )
    dense_optimizer = keras.optimizers.Adam(deep_fm.DENSE_LEARNING_RATE)
    model.compile(dense_optimizer, "binary_crossentropy")
    return model


def fill(model: keras.Model, workload: Workload) -> None:
    """Trains on every id of every field once, so that each has its rows."""
    for ids in all_ids(workload, ROWS_AT_ONCE // workload.num_fields):
        dense = np.zeros((len(ids), deep_fm.NUM_DENSE), np.float32)
        model.train_on_batch({"ids": ids, "dense": dense}, np.zeros((len(ids), 1)))


def make_step(case: Case, batches: int) -> Step:
    model = make_model(case.workload, case.optimizer)
    fill(model, case.workload)
    inputs = {
        "ids": case.workload.batches(),
        "dense": case.workload.dense_features(deep_fm.NUM_DENSE),
    }
    clicks = case.workload.labels()[:, :, None]
    dataset = tf.data.Dataset.from_tensor_slices((inputs, clicks)).repeat()
    dataset = steady(dataset)
    return lambda i: model.fit(dataset, steps_per_epoch=batches, verbose=0)


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    return Cases(
        steps={
            case.name: make_step(case, options.batches_per_step)
            for case in options.cases()
        },
        versions={"tensorflow": tf.__version__, "keras": keras.__version__},
        warm_up=1,
    )
