"""DeepFM as a TFRA user writes it: a `tf_keras` model on two TFRA layers, `fit`.

Both tables hold every id of the workload before the first step. One legacy optimizer
trains everything, as TFRA's wrapper takes one.
"""

from typing import Any

import tensorflow as tf
import tf_keras  # type: ignore[import-not-found]
from tensorflow_recommenders_addons import dynamic_embedding as de

from tfctr.bench.workers import deep_fm
from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import Case, Options
from tfctr.bench.workers.tensorflow_setup import limit_threads, steady
from tfctr.bench.workers.tfra import OPTIMIZERS, make_layer, versions
from tfctr.bench.workload import Workload


class DeepFM(tf_keras.Model):
    """The DeepFM of the benchmark on TFRA's layers."""

    def __init__(self, name: str, workload: Workload) -> None:
        super().__init__(name=name)
        self.offsets = tf.constant(workload.offsets())
        self.rows = make_layer(f"{name}_rows", workload.dim, workload.num_rows)
        self.bias = make_layer(f"{name}_bias", 1, workload.num_rows)
        self.linear = tf_keras.layers.Dense(1)
        self.mlp = tf_keras.Sequential(
            [tf_keras.layers.Dense(units, "relu") for units in deep_fm.HIDDEN_UNITS]
            + [tf_keras.layers.Dense(1)]
        )

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        ids, dense = inputs
        keys = ids + self.offsets
        rows = self.rows(keys)  # (batch, fields, dim)
        first_order = tf.reduce_sum(self.bias(keys), axis=1) + self.linear(dense)
        total = tf.reduce_sum(rows, axis=1)
        pairs = tf.square(total) - tf.reduce_sum(tf.square(rows), axis=1)
        flat = tf.reshape(rows, (-1, rows.shape[1] * rows.shape[2]))
        deep = self.mlp(tf.concat([flat, dense], axis=1))
        second_order = 0.5 * tf.reduce_sum(pairs, axis=1, keepdims=True)
        return tf.sigmoid(first_order + second_order + deep)

    # Autograph takes `tf_keras` for a user's code, and half a minute to convert it.
    @tf.autograph.experimental.do_not_convert
    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        return dict(super().train_step(data))


def make_step(case: Case, batches: int) -> Step:
    workload = case.workload
    model = DeepFM(case.name.replace("/", "_"), workload)
    wrapped = de.DynamicEmbeddingOptimizer(OPTIMIZERS[case.optimizer]())
    model.compile(wrapped, "binary_crossentropy")
    inputs = (workload.batches(), workload.dense_features(deep_fm.NUM_DENSE))
    clicks = workload.labels()[:, :, None]
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
        versions=versions(),
        warm_up=1,
    )
