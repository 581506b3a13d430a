"""Horovod's collectives; where one process trains alone, nothing of Horovod."""

import collections
import functools
import json
import os
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfctr.distributed import failures

# How the launchers tell a process how many there are.
_SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# A rank that waits so many seconds for another one ends the job. Beyond what saving a
# model on rank 0 takes, and better than to wait for good.
_STALL_SECONDS = 600
# How often Horovod looks for ranks that are waited for; it takes four looks to tell.
_STALL_CHECK_SECONDS = 15


def init() -> None:
    """Joins the job that `horovodrun` has started; alone, does nothing.

    Every other function of `tfctr.distributed` does it too. A script calls it first, so
    that what is wrong is told before any data is read.

    From here on, an error that nobody catches ends this rank at once, and so the job:
    its traceback is followed by a line that names the rank. Ranks that wait for another
    one look every 15 seconds who is missing, warn, and end the job after a limit, by
    default 600 seconds; set `HOROVOD_STALL_SHUTDOWN_TIME_SECONDS` for another one. That
    takes the Horovod of `make setup`: as published, Horovod 0.28.1 with Gloo waits for
    good.

    Raises:
        ImportError: If there are several processes and no Horovod.
        RuntimeError: If Horovod does not know of the others.

    Example:

    >>> init()
    """
    if _launched_size() > 1:
        _horovod()


def rank() -> int:
    """Returns which of the processes this is, from 0.

    Example:

    >>> rank()
    0
    """
    return int(_horovod().rank()) if _launched_size() > 1 else 0


def size() -> int:
    """Returns how many processes train together.

    Example:

    >>> size()
    1
    """
    return int(_horovod().size()) if _launched_size() > 1 else 1


def local_rank() -> int:
    """Returns which of the processes on this machine this is, from 0.

    Example:

    >>> local_rank()
    0
    """
    return int(_horovod().local_rank()) if _launched_size() > 1 else 0


def is_main() -> bool:
    """Returns whether this is rank 0, the one that prints and writes.

    Example: `model.fit(..., verbose=2 if is_main() else 0)`.

    >>> is_main()
    True
    """
    return rank() == 0


# Collectives. All ranks must call the same ones, under the same names.


def all_reduce(
    tensors: Sequence[tf.Tensor],
    name: str,
    average: bool = False,
    wire_dtype: str | None = None,
) -> list[tf.Tensor]:
    """Returns the sums, or means, of float tensors over all ranks, in one exchange.

    Args:
        tensors: Float tensors, of the same shapes on all ranks.
        name: String, of letters, digits, `_` and `.`.
        average: Boolean. Whether to divide by the number of ranks.
        wire_dtype: String. `"float16"` or `"bfloat16"` sends so rounded numbers, and
            sums them in float32. `None` sends them as they are.
    """
    tensors = list(tensors)
    if size() == 1 or not tensors:
        return tensors
    if wire_dtype is not None:
        return _all_reduce_rounded(tensors, name, average, wire_dtype)
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:  # Horovod sums one kind at a time.
        sums = {
            dtype: iter(
                all_reduce(
                    [tensor for tensor in tensors if tensor.dtype == dtype],
                    f"{name}.{dtype.name}",
                    average,
                )
            )
            for dtype in sorted(dtypes, key=lambda dtype: dtype.name)
        }
        return [next(sums[tensor.dtype]) for tensor in tensors]
    hvd, name = _horovod(), _unique(name)
    reduction = hvd.Average if average else hvd.Sum

    def reduce(*tensors: tf.Tensor) -> Any:
        return hvd.grouped_allreduce(
            list(tensors), op=reduction, name=name, ignore_name_scope=True
        )

    return list(_call(reduce, f"reduce {name} {average}", *tensors))


def all_gather(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the tensors of all ranks, one behind the other along the first axis."""
    if size() == 1:
        return tensor
    name = _unique(name)

    def gather(tensor: tf.Tensor) -> Any:
        return _horovod().allgather(tensor, name=name, ignore_name_scope=True)

    return _call(gather, f"gather {name}", tensor)


def all_to_all(
    tensor: tf.Tensor, sizes: tf.Tensor, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends each rank its part of `tensor`, and returns what all have sent here.

    Args:
        tensor: `(n, ...)`; first the rows for rank 0, then those for rank 1, and so on.
        sizes: int32 `(ranks,)`: how many rows each rank is sent.
        name: String.

    Returns:
        The rows received, those of rank 0 first; and how many each rank has sent.
    """
    if size() == 1:
        return tensor, sizes
    name = _unique(name)

    def exchange(tensor: tf.Tensor, sizes: tf.Tensor) -> Any:
        return _horovod().alltoall(
            tensor, splits=sizes, name=name, ignore_name_scope=True
        )

    received, received_sizes = _call(exchange, f"exchange {name}", tensor, sizes)
    return received, received_sizes


def broadcast(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the tensor of rank 0."""
    if size() == 1:
        return tensor
    name = _unique(name)

    def send(tensor: tf.Tensor) -> Any:
        return _horovod().broadcast(tensor, 0, name=name, ignore_name_scope=True)

    return _call(send, f"broadcast {name}", tensor)


def gather_objects(value: Any, name: str) -> list[Any]:
    """Returns the JSON-able values of all ranks, that of rank 0 first. Eager only."""
    if size() == 1:
        return [value]
    text = tf.io.decode_raw(json.dumps(value), tf.uint8)
    lengths = all_gather(tf.reshape(tf.size(text), [1]), f"{name}.lengths").numpy()
    texts = bytes(all_gather(text, f"{name}.texts").numpy())
    values, start = [], 0
    for length in lengths:
        values.append(json.loads(texts[start : start + length]))
        start += length
    return values


def barrier(name: str) -> None:
    """Waits until all ranks have come here."""
    gather_objects(None, name)


def _all_reduce_rounded(
    tensors: list[tf.Tensor], name: str, average: bool, wire_dtype: str
) -> list[tf.Tensor]:
    """Each rank sums one part of all numbers, and sends the sums to all others.

    Horovod cannot add bfloat16, and float16 only with the rounding of every addition.
    """
    ranks, dtype = size(), tf.as_dtype(wire_dtype)
    flat = tf.concat(
        [tf.reshape(tf.cast(tensor, tf.float32), [-1]) for tensor in tensors], 0
    )
    count = tf.size(flat)
    part = (count + ranks - 1) // ranks
    flat = tf.pad(flat, [[0, part * ranks - count]])
    # As bits: what only passes through needs no arithmetic.
    sent = tf.bitcast(tf.cast(flat, dtype), tf.uint16)
    parts, _ = all_to_all(sent, tf.fill([ranks], part), f"{name}.parts")
    parts = tf.bitcast(tf.reshape(parts, [ranks, part]), dtype)
    total = tf.reduce_sum(tf.cast(parts, tf.float32), 0)
    if average:
        total /= ranks
    total = tf.bitcast(tf.cast(total, dtype), tf.uint16)
    sums = tf.bitcast(all_gather(total, f"{name}.sums"), dtype)[:count]
    pieces = tf.split(sums, [tf.size(tensor) for tensor in tensors])
    return [
        tf.cast(tf.reshape(piece, tf.shape(tensor)), tensor.dtype)
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]


_uses: "weakref.WeakKeyDictionary[Any, collections.Counter[str]]" = (
    weakref.WeakKeyDictionary()
)


def _unique(name: str) -> str:
    """Returns a name that no other collective of the same graph has.

    Those of one graph may be under way together, and Horovod tells them by their names.
    All ranks make the same graphs, so they count alike.
    """
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    while isinstance(getattr(graph, "outer_graph", None), type(graph)):
        graph = graph.outer_graph
    count = _uses.setdefault(graph, collections.Counter())
    count[name] += 1
    return name if count[name] == 1 else f"{name}.{count[name]}"


_functions: dict[Any, Callable[..., Any]] = {}


def _call(function: Callable[..., Any], key: str, *tensors: tf.Tensor) -> Any:
    """Calls a collective so that it keeps its name.

    Called eagerly, all ops of a kind would bear one name, and two threads would meet.
    """
    tensors = tuple(tf.convert_to_tensor(tensor) for tensor in tensors)
    if not tf.executing_eagerly():
        return function(*tensors)
    # Not traced again for another number of rows.
    specs = tuple(
        tf.TensorSpec(
            [None] * min(tensor.shape.rank, 1) + tensor.shape[1:], tensor.dtype
        )
        for tensor in tensors
    )
    if (key, specs) not in _functions:
        traced = tf.function(function, input_signature=specs, autograph=False)
        # TensorFlow takes functions of one origin for one that is traced ever again.
        _functions[key, specs] = traced.get_concrete_function()
    return _functions[key, specs](*tensors)


def _launched_size() -> int:
    return max(int(os.environ.get(name, "1")) for name in _SIZES)


@functools.cache
def _horovod() -> ModuleType:
    """Horovod for TensorFlow, initialised."""
    _limit_stalls()
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise ImportError(
            "Several processes train together by Horovod. Received: "
            f"{_launched_size()} processes, and a Python without Horovod "
            f"({error}). In the repository of tfctr, `make setup` builds it. "
            "Elsewhere: pip install 'cmake<4', then HOROVOD_WITH_TENSORFLOW=1 "
            "HOROVOD_WITH_GLOO=1 pip install --no-build-isolation horovod==0.28.1"
        ) from error
    hvd.init()
    if hvd.size() != _launched_size():
        raise RuntimeError(
            f"{_launched_size()} processes were started to train together. Received: a "
            f"Horovod that sees {hvd.size()}, since it is not built for their "
            "launcher. Start them with horovodrun."
        )
    failures.end_with_job(hvd.rank(), hvd.size())
    module: ModuleType = hvd
    return module


def _limit_stalls() -> None:
    limit = os.environ.setdefault(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(_STALL_SECONDS)
    )
    check = _STALL_CHECK_SECONDS
    if limit.isdigit() and int(limit) > 0:
        check = min(check, int(limit))  # Horovod disregards a limit below it.
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(check))
