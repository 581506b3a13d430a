"""A `tf.Variable` and TensorFlow's own sparse ops: the fastest static table we know.

Keys are int32, which TensorFlow's gather and unique are faster with; tables larger
than that need int64. Adagrad is TensorFlow's fused sparse kernel on the sum of each
distinct row's gradients. Adam is "lazy": rows outside the batch keep their moments,
and the bias correction is that of the global step. TensorFlow has no fused sparse
Adam, so it is made of gathers and scatters over the distinct rows.
"""

import tensorflow as tf

from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import Options
from tfctr.bench.workers.tensorflow_setup import id_tensors, limit_threads
from tfctr.bench.workload import Workload

EPSILON = 1e-7


def make_table(workload: Workload) -> tf.Variable:
    shape = (workload.num_rows, workload.dim)
    return tf.Variable(tf.random.uniform(shape, -0.05, 0.05), name="table")


def make_adagrad(workload: Workload) -> Step:
    table = make_table(workload)
    accumulator = tf.Variable(tf.fill(table.shape, 0.1))
    offsets = tf.constant(workload.offsets(), tf.int32)
    gradient = tf.constant(workload.gradient().reshape(-1, workload.dim))

    @tf.function(autograph=False)
    def train(ids: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(ids + offsets, [-1])
        vectors = tf.gather(table, rows)
        distinct, position = tf.unique(rows)
        summed = tf.math.unsorted_segment_sum(gradient, position, tf.size(distinct))
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=accumulator.handle,
            lr=0.01,
            epsilon=EPSILON,
            grad=summed,
            indices=distinct,
        )
        return vectors

    ids = id_tensors(workload, tf.int32)
    return lambda i: train(ids[i % len(ids)])


def make_adam(workload: Workload) -> Step:
    table = make_table(workload)
    mean = tf.Variable(tf.zeros(table.shape))
    square = tf.Variable(tf.zeros(table.shape))
    offsets = tf.constant(workload.offsets(), tf.int32)
    gradient = tf.constant(workload.gradient().reshape(-1, workload.dim))
    count = tf.Variable(0.0)

    @tf.function(autograph=False)
    def train(ids: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(ids + offsets, [-1])
        vectors = tf.gather(table, rows)
        distinct, position = tf.unique(rows)
        summed = tf.math.unsorted_segment_sum(gradient, position, tf.size(distinct))
        step = count.assign_add(1.0)
        rate = 0.001 * tf.sqrt(1.0 - 0.999**step) / (1.0 - 0.9**step)
        old_mean = tf.gather(mean, distinct)
        old_square = tf.gather(square, distinct)
        new_mean = old_mean + 0.1 * (summed - old_mean)
        new_square = old_square + 0.001 * (tf.square(summed) - old_square)
        move = rate * new_mean / (tf.sqrt(new_square) + EPSILON)
        mean.scatter_update(tf.IndexedSlices(new_mean, distinct))
        square.scatter_update(tf.IndexedSlices(new_square, distinct))
        table.scatter_sub(tf.IndexedSlices(move, distinct))
        return vectors

    ids = id_tensors(workload, tf.int32)
    return lambda i: train(ids[i % len(ids)])


MAKERS = {"adagrad": make_adagrad, "adam": make_adam}


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    return Cases(
        steps={
            case.name: MAKERS[case.optimizer](case.workload) for case in options.cases()
        },
        versions={"tensorflow": tf.__version__},
    )
