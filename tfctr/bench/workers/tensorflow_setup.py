"""What the TensorFlow workers have in common."""

import numpy as np
import tensorflow as tf

from tfctr.bench.workload import Workload


def limit_threads(threads: int, ops_at_once: int = 1) -> None:
    """Gives TensorFlow this many threads inside an op, and one op at a time."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(ops_at_once)
    tf.random.set_seed(0)


def id_tensors(workload: Workload, dtype: tf.DType = tf.int64) -> list[tf.Tensor]:
    """The ids of each batch, as they come from a log: numbered within their field."""
    return [tf.constant(batch, dtype) for batch in workload.batches()]


def steady(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same data set, without the thread that tunes it.

    The end of a `fit` waits for that thread, which sleeps ever longer, up to seconds.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def all_ids(workload: Workload, rows_at_once: int) -> list[tf.Tensor]:
    """Batches of shape `(rows, num_fields)` that hold every id of every field once."""
    column = np.arange(workload.rows_per_field)
    return [
        tf.constant(np.repeat(part[:, None], workload.num_fields, axis=1))
        for part in np.split(column, range(rows_at_once, column.size, rows_at_once))
    ]
