"""`DistributedOptimizer`: any Keras optimizer, on the gradients of all ranks."""

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_layers.dynamic_embedding import is_anchor
from tfctr.distributed import engine
from tfctr.distributed.ranks import exchange_of, merges_weights, note_exchange
from tfctr.distributed.wire import check_wire_dtype

_REDUCTIONS = ("mean", "sum")
# Names of exchanges.
_numbers = itertools.count()


def DistributedOptimizer(
    optimizer: Any, reduction: str = "mean", wire_dtype: str | None = None
) -> Any:
    """Returns an optimizer that moves the weights by the gradients of all ranks.

    At each step the ranks exchange their dense gradients of one dtype at once, before
    anything else is done with them: clipping, weight decay, averages of weights and
    schedules act on what all ranks together have found, as they do in one process. The
    rows of tables have their own optimizers and exchanges.

    A gradient of rows, as `keras.layers.Embedding` has it, is sent as rows, each once,
    or whole where that is smaller. A weight without a gradient is left out.

    All ranks must make their optimizers in the same order.

    It is an optimizer of the same class, with the same arguments and, if that was
    built, the same state. Saved with a model it is the plain optimizer: wrap it anew
    after loading, `model.compile(DistributedOptimizer(model.optimizer), ...)`.

    Args:
        optimizer: Keras optimizer, or its name. It is not changed.
        reduction: String. `"mean"` of the ranks' gradients, for losses that are means
            over the examples, or `"sum"`, for losses that are sums.
        wire_dtype: String. `"float16"` or `"bfloat16"` sends so rounded numbers, half
            the bytes, and adds them in float32. `None` sends them as they are.

    Returns:
        Keras optimizer.

    Raises:
        ValueError: If an argument is none of these, the optimizer is distributed
            already or merges its weights itself, scales the loss or accumulates
            gradients.

    Example:

    >>> DistributedOptimizer(keras.optimizers.Adam(1e-3)).beta_1
    0.9
    """
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    _check(optimizer, reduction, wire_dtype)
    note_exchange()
    base = type(optimizer)
    name = f"gradients.{next(_numbers)}"
    # Of optimizers inside of it too.
    state = [keras.ops.convert_to_numpy(one) for one in optimizer.variables]
    is_built = optimizer.built

    def build(self: Any, variables: Any) -> None:
        base.build(self, variables)
        if is_built:
            with tf.init_scope():  # Keras builds while it traces the first step.
                for variable, value in zip(self.variables, state, strict=True):
                    variable.assign(value)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        variables = None if trainable_variables is None else list(trainable_variables)
        grads = _reduce(list(grads), variables, name, reduction == "mean", wire_dtype)
        base.apply(self, grads, variables)

    kind: Any = type(
        # What Keras saves: names by which it finds the base.
        keras.saving.get_registered_name(base),
        (base,),
        {
            "__module__": base.__module__,
            "__doc__": base.__doc__,
            "gradient_exchange": f"{name}, {reduction}, sent as "
            f"{wire_dtype or 'they are'}",
            "build": build,
            "apply": apply,
        },
    )
    return kind.from_config(optimizer.get_config())


def is_distributed(optimizer: Any) -> bool:
    """Returns whether `DistributedOptimizer` has made this optimizer.

    Args:
        optimizer: Keras optimizer.

    Example:

    >>> is_distributed(keras.optimizers.Adam(1e-3))
    False
    """
    return exchange_of(optimizer) is not None


def _check(optimizer: Any, reduction: str, wire_dtype: str | None) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(
            "`reduction` must be one of 'mean', 'sum'. "
            f"Received: reduction={reduction!r}."
        )
    check_wire_dtype(wire_dtype)
    wraps = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if wraps or not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            "`optimizer` must be a Keras optimizer without a wrapper, or its name. "
            f"Received: an object of class {type(optimizer).__name__}. Under "
            "'mixed_bfloat16' and 'float32' no loss scaling is needed."
        )
    if is_distributed(optimizer):
        raise ValueError(
            "`optimizer` must exchange its gradients once. Received: an optimizer that "
            "DistributedOptimizer has made. Compile with it as it is."
        )
    if any(kind.__module__.startswith("horovod") for kind in type(optimizer).__mro__):
        raise ValueError(
            "`optimizer` must be the plain Keras optimizer: Horovod's wrapper averages "
            f"nothing under Keras 3. Received: {type(optimizer).__module__}."
            f"{type(optimizer).__name__}."
        )
    if merges_weights(optimizer):
        raise ValueError(
            "`optimizer` must not merge the weights of the ranks itself. Received: "
            f"{type(optimizer).__name__}, which does. Compile with it as it is."
        )
    if optimizer.loss_scale_factor:
        raise ValueError(
            "`optimizer` must not scale the loss. Received: "
            f"loss_scale_factor={optimizer.loss_scale_factor}. Leave it out: "
            "'mixed_bfloat16' and 'float32' need none."
        )
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            "`optimizer` must move the weights at every step. Received: "
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}. "
            "Raise the batch size instead."
        )


def _reduce(
    gradients: list[Any],
    variables: Sequence[Any] | None,
    name: str,
    average: bool,
    wire_dtype: str | None,
) -> list[Any]:
    """Returns the sums, or means, of the gradients over all ranks.

    What is sent depends on the model alone, so that it is the same on all ranks.
    """
    if engine.size() == 1:
        return gradients
    dense: list[int] = []
    sparse: list[int] = []
    for index, gradient in enumerate(gradients):
        # The gradient of an anchor says nothing: it is zero.
        if gradient is None or (variables and is_anchor(variables[index])):
            continue
        (sparse if isinstance(gradient, tf.IndexedSlices) else dense).append(index)
    # float16 sums would round at each addition, and bfloat16 has none.
    sent = [_at_least_float32(gradients[index]) for index in dense]
    reduced = list(gradients)
    sums = engine.all_reduce(sent, name, average, wire_dtype)
    for index, total in zip(dense, sums, strict=True):
        reduced[index] = tf.cast(total, gradients[index].dtype)
    rows = [_sum_duplicates(gradients[index]) for index in sparse]
    if sparse:
        counts = tf.stack([tf.size(part.indices) for part in rows])
        counts = engine.all_gather(counts[None], f"{name}.counts")
        counts = tf.unstack(tf.reduce_sum(counts, 0), num=len(sparse))
        for number, index in enumerate(sparse):
            reduced[index] = _reduce_rows(
                rows[number],
                counts[number],
                f"{name}.rows.{number}",
                average,
                wire_dtype,
            )
    return reduced


def _reduce_rows(
    gradient: tf.IndexedSlices,
    count: tf.Tensor,
    name: str,
    average: bool,
    wire_dtype: str | None,
) -> tf.IndexedSlices:
    """As `_reduce`, of rows that are distinct here, `count` on all ranks together."""
    dtype = gradient.values.dtype
    values = _at_least_float32(gradient.values)
    num_rows = tf.cast(gradient.dense_shape[0], tf.int64)
    indices = tf.cast(gradient.indices, tf.int64)

    def exchange_rows() -> tuple[tf.Tensor, tf.Tensor]:
        wire = values
        if wire_dtype is not None:
            wire = tf.bitcast(tf.cast(values, wire_dtype), tf.uint16)
        all_rows = engine.all_gather(wire, f"{name}.values")
        if wire_dtype is not None:
            all_rows = tf.bitcast(all_rows, wire_dtype)
        all_rows = tf.cast(all_rows, values.dtype)
        if average:
            all_rows /= engine.size()
        total = _sum_duplicates(
            tf.IndexedSlices(all_rows, engine.all_gather(indices, f"{name}.indices"))
        )
        return total.values, total.indices

    def exchange_all() -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.concat([num_rows[None], tf.shape(values, tf.int64)[1:]], 0)
        dense = tf.scatter_nd(indices[:, None], values, shape)
        [total] = engine.all_reduce([dense], f"{name}.dense", average, wire_dtype)
        return total, tf.range(num_rows)

    number_bytes = values.dtype.size if wire_dtype is None else 2
    row_bytes = tf.reduce_prod(tf.shape(values, tf.int64)[1:]) * number_bytes
    # Each rank is sent all rows; in a sum, as good as all numbers twice.
    as_rows = tf.cast(count, tf.int64) * (row_bytes + 8) < 2 * num_rows * row_bytes
    total, indices_of_total = tf.cond(as_rows, exchange_rows, exchange_all)
    total = tf.ensure_shape(tf.cast(total, dtype), [None, *values.shape[1:]])
    return tf.IndexedSlices(total, indices_of_total, gradient.dense_shape)


def _sum_duplicates(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(
        _at_least_float32(gradient.values), positions, tf.size(indices)
    )
    values = tf.cast(values, gradient.values.dtype)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def _at_least_float32(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor
