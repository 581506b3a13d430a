"""`shard` and `shard_examples`: each rank its part, and all as many steps."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfctr.distributed import engine


def shard(dataset: tf.data.Dataset, training: bool = True) -> tf.data.Dataset:
    """Gives each rank its slice of every batch of a data set that all ranks read.

    Of a batch of B examples, rank r of N gets those from `r * B // N` up to
    `(r + 1) * B // N`. All ranks must read the same batches in the same order: give
    `shuffle` a seed.

    Unless B is known and N divides it, the examples get weights, by which Keras weighs
    the loss. Where slices are unequal, as they can be in the last batch, each of the b
    examples of a rank weighs `N * b / B`. The mean of the ranks' mean losses is then
    the mean over the batch, and so are gradients and the updates of all weights and
    rows. A rank whose slice is empty gets some example of the batch once more, with
    weight 0. Weights of your own are multiplied; data sets without labels get none.

    `compile(metrics=)` ignores weights, and `weighted_metrics=` heeds them. The logged
    `loss` of training takes unequal slices for equal ones; for exact metrics, evaluate
    on `shard(dataset, training=False)` with `MetricAverage`.

    Alone, it is the data set itself.

    Args:
        dataset: `tf.data.Dataset` of global batches `x`, `(x, y)` or
            `(x, y, sample_weight)`, any structure of dense, ragged or sparse tensors
            whose first axis is the batch.
        training: Boolean. With False, for evaluation and for losses that are sums,
            weights are 1, and 0 for an example that is there once more.

    Returns:
        `tf.data.Dataset` with as many batches.

    Raises:
        ValueError: If a tensor has no axis for the batch.

    Example:

    >>> dataset = tf.data.Dataset.range(4).batch(2)
    >>> len(shard(dataset))
    2
    """
    return _shard(dataset, engine.rank(), engine.size(), training)


def shard_examples(
    dataset: tf.data.Dataset, batch_size: int, training: bool = True
) -> tf.data.Dataset:
    """Makes batches of examples that this rank alone reads, as many on every rank.

    For data in files that the ranks share out among themselves, with whatever numbers
    of examples. All ranks must call it. It asks how many examples each has, which reads
    them once where `dataset` cannot tell, and expects that many each time.

    A rank that runs out goes on with one example of its own and weight 0, so that
    exchanges find all ranks; the others' examples then weigh more, as in `shard`. A
    rank without any example goes on with zeros, of weight 0: where those are ids, id 0,
    or the empty string, gets a row. Unless all ranks have equally many, there are
    weights.

    Args:
        dataset: `tf.data.Dataset` of the examples of this rank, not batched, as for
            `shard`.
        batch_size: Integer. Examples of all ranks together in a step.
        training: Boolean, as for `shard`.

    Returns:
        `tf.data.Dataset` of batches of `batch_size / ranks` examples, of known length.
        Alone, `dataset.batch(batch_size)`.

    Raises:
        ValueError: If `batch_size` is no multiple of the number of ranks, the data set
            is infinite, or no rank has an example.

    Example:

    >>> len(shard_examples(tf.data.Dataset.range(5), batch_size=2))
    3
    """
    if batch_size < 1 or batch_size % engine.size():
        raise ValueError(
            "`batch_size` must be a positive multiple of the number of ranks. "
            f"Received: batch_size={batch_size}, {engine.size()} ranks."
        )
    if engine.size() == 1:
        return dataset.batch(batch_size)
    counts = engine.gather_objects(count_elements(dataset), "shard_examples.counts")
    return _shard_examples(dataset, batch_size, engine.rank(), counts, training)


def _shard(
    dataset: tf.data.Dataset, rank: int, ranks: int, training: bool
) -> tf.data.Dataset:
    if ranks == 1:
        return dataset
    spec = dataset.element_spec
    sizes = {_batch_axis(part) for part in tf.nest.flatten(spec) if part is not None}
    is_even = all(size is not None and size % ranks == 0 for size in sizes)

    def cut(batch: Any) -> Any:
        size = _batch_size(batch)
        start, stop = rank * size // ranks, (rank + 1) * size // ranks
        # One example at least, if only to take part.
        longer = max if isinstance(size, int) else tf.maximum
        factor = (stop - start) * ranks / longer(size, 1)
        stop = longer(stop, start + 1)
        batch = tf.nest.map_structure(lambda part: _slice(part, start, stop), batch)
        return batch if is_even else _weigh(batch, factor, training)

    return _map(dataset, cut)


def _shard_examples(
    dataset: tf.data.Dataset,
    batch_size: int,
    rank: int,
    counts: Sequence[int],
    training: bool,
) -> tf.data.Dataset:
    if -1 in counts or max(counts) == 0:
        raise ValueError(
            "`dataset` must have an end, and an example on some rank. Received: "
            f"{[count if count >= 0 else 'infinitely many' for count in counts]} "
            "examples on the ranks. Give steps by dataset.take(n), not by repeat()."
        )
    ranks = len(counts)
    local_size = batch_size // ranks
    steps = -(-max(counts) // local_size)
    # (steps, ranks): how many examples each rank has at each step.
    taken = np.arange(steps)[:, None] * local_size
    sizes = np.clip(np.array(counts) - taken, 0, local_size)
    factors = sizes[:, rank] * ranks / sizes.sum(1)
    batches = dataset.batch(local_size)
    if counts[rank]:
        filler = dataset.take(1).batch(1)
    else:
        zeros = tf.nest.map_structure(_zeros, batches.element_spec)
        filler = tf.data.Dataset.from_tensors(zeros)
    num_fillers = int((sizes[:, rank] == 0).sum())
    if num_fillers:
        batches = batches.concatenate(filler.repeat(num_fillers))
    if len(set(counts)) > 1:
        of_steps = tf.data.Dataset.from_tensor_slices(factors.astype(np.float32))
        batches = tf.data.Dataset.zip((batches, of_steps)).map(
            lambda batch, factor: _weigh(batch, factor, training)
        )
    return batches.apply(tf.data.experimental.assert_cardinality(steps))


def count_elements(dataset: tf.data.Dataset) -> int:
    """Returns how many elements there are, by reading them if need be; -1: no end."""
    known = int(dataset.cardinality())
    if known != tf.data.UNKNOWN_CARDINALITY:
        return known
    return int(dataset.reduce(np.int64(0), lambda count, _: count + 1))


def _map(dataset: tf.data.Dataset, function: Any) -> tf.data.Dataset:
    """Maps with the element as one argument, a tuple or not."""
    is_tuple = isinstance(dataset.element_spec, tuple)
    return dataset.map(
        lambda *parts: function(parts if is_tuple else parts[0]),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _batch_axis(spec: Any) -> int | None:
    if spec.shape.rank == 0:
        raise ValueError(
            "`dataset` must hold batches: tensors whose first axis is the batch. "
            f"Received: {spec}. Batch it first: dataset.batch(global_batch_size)."
        )
    return None if spec.shape.rank is None else spec.shape[0]


def _batch_size(batch: Any) -> Any:
    """Returns an integer if the shapes tell it, else a tensor."""
    parts = [part for part in tf.nest.flatten(batch) if part is not None]
    known = [part.shape[0] for part in parts if part.shape.rank]
    if known and known[0] is not None:
        return known[0]
    first = parts[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows(tf.int64)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return tf.shape(first, tf.int64)[0]


def _slice(part: Any, start: Any, stop: Any) -> Any:
    if part is None:
        return None
    if not isinstance(part, tf.SparseTensor):
        return part[start:stop]
    shape = tf.concat([[stop - start], part.dense_shape[1:]], 0)
    begin = tf.concat([[start], tf.zeros_like(part.dense_shape[1:])], 0)
    cut = tf.sparse.slice(part, tf.cast(begin, tf.int64), tf.cast(shape, tf.int64))
    cut.set_shape([None, *part.shape[1:]])
    return cut


def _weigh(batch: Any, factor: Any, training: bool) -> Any:
    """Multiplies the sample weights; a factor of 0 marks what does not count."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if y is None:
        return batch
    factor = tf.cast(factor, tf.float32)
    if not training:
        factor = tf.cast(factor > 0, tf.float32)
    if weights is None:
        weights = tf.ones([_batch_size(x)])
    return x, y, tf.nest.map_structure(lambda part: _times(part, factor), weights)


def _times(weights: Any, factor: tf.Tensor) -> Any:
    return None if weights is None else tf.cast(weights, tf.float32) * factor


def _zeros(spec: Any) -> Any:
    """Returns a batch of one example: zeros, or no values at all."""
    inner = [1 if size is None else size for size in spec.shape[1:]]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(
            np.zeros([0, len(inner) + 1], np.int64),
            tf.zeros([0], spec.dtype),
            [1, *inner],
        )
    if not isinstance(spec, tf.RaggedTensorSpec):
        return tf.zeros([1, *inner], spec.dtype)
    values = tf.zeros([0, *inner[spec.ragged_rank :]], spec.dtype)
    splits = [[0, 0], *[[0]] * (spec.ragged_rank - 1)]
    return tf.RaggedTensor.from_nested_row_splits(
        values, [tf.constant(part, spec.row_splits_dtype) for part in splits]
    )
