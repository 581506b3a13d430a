"""Which ids an embedding layer has looked up in a step, and in how many samples."""

import collections
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

# Gradients that are computed outside of a graph, and that nobody applies, must not fill
# the memory.
_MOST_PASSES = 256


@dataclasses.dataclass(frozen=True)
class Call:
    """The ids of one call of a layer: one sample may have several, or none."""

    ids: tf.Tensor  # (n,) int64, none of them negative.
    samples: tf.Tensor  # (n,) int64: the sample of each id.
    num_samples: tf.Tensor  # () int64
    # How many ids each sample has, one behind the other. None: not equally many.
    width: int | tf.Tensor | None


class CallRecorder:
    """Stands in for `layer.call`, and notes the ids of calls that get a gradient.

    It notes in the backward pass, so that evaluation and the like leave no trace. Calls
    of one backward pass are told from those of another by the calls in between.

    Args:
        layer: `keras.layers.Embedding`.
    """

    def __init__(self, layer: keras.layers.Embedding) -> None:
        self._name = layer.name
        self._num_rows = layer.input_dim
        self._call = layer.call
        self._num_calls = 0
        self._eager = _Passes(maxlen=_MOST_PASSES)
        self._of_graphs: weakref.WeakKeyDictionary[Any, _Passes] = (
            weakref.WeakKeyDictionary()
        )

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = self._call(inputs, *args, **kwargs)
        self._num_calls += 1
        number, call = self._num_calls, self._describe(inputs)

        @tf.custom_gradient
        def note(vectors: tf.Tensor) -> Any:
            def backward(gradient: Any) -> Any:
                self._passes().note(self._num_calls, number, call)
                return gradient

            return tf.identity(vectors), backward

        if isinstance(outputs, tf.RaggedTensor):
            return outputs.with_flat_values(note(outputs.flat_values))
        return note(outputs)

    def take(self) -> list[list[Call]]:
        """Returns and forgets what was noted: by backward pass, the calls."""
        if tf.executing_eagerly():
            return self._eager.take()
        graph = tf.compat.v1.get_default_graph()
        # What is applied on a condition is a graph of its own.
        while graph is not None:
            if graph in self._of_graphs:
                return self._of_graphs[graph].take()
            graph = getattr(graph, "outer_graph", None)
        return []

    def _passes(self) -> "_Passes":
        if tf.executing_eagerly():
            return self._eager
        graph = tf.compat.v1.get_default_graph()
        return self._of_graphs.setdefault(graph, _Passes())

    def _describe(self, ids: Any) -> Call:
        if isinstance(ids, tf.SparseTensor):
            raise ValueError(
                f"CowClip counts dense and ragged ids. Received: layer '{self._name}', "
                "called with a SparseTensor. Make it ragged: "
                "tf.RaggedTensor.from_sparse(ids)."
            )
        width: int | tf.Tensor | None = None
        if isinstance(ids, tf.RaggedTensor):
            rows = ids.merge_dims(1, -1) if ids.shape.rank > 2 else ids
            flat, samples = rows.values, tf.cast(rows.value_rowids(), tf.int64)
            num_samples = rows.nrows(tf.int64)
        else:
            ids = tf.convert_to_tensor(ids)
            ids = ids[tf.newaxis] if ids.shape.rank == 0 else ids
            flat, num_samples = tf.reshape(ids, [-1]), tf.shape(ids, tf.int64)[0]
            width = ids.shape[1:].num_elements()
            if not width:
                width = tf.size(flat, tf.int64) // tf.maximum(num_samples, 1)
                width = tf.maximum(width, 1)
            samples = tf.range(tf.size(flat, tf.int64)) // width
        flat = tf.cast(flat, tf.int64)
        flat = tf.where(flat < 0, flat + self._num_rows, flat)  # As Keras reads it.
        return Call(flat, samples, num_samples, width)


class _Passes:
    """By backward pass, the calls that had a part in it, each once."""

    def __init__(self, maxlen: int | None = None) -> None:
        self._passes: collections.deque[tuple[int, dict[int, Call]]] = (
            collections.deque(maxlen=maxlen)
        )

    def note(self, backward_pass: int, number: int, call: Call) -> None:
        if not self._passes or self._passes[-1][0] != backward_pass:
            self._passes.append((backward_pass, {}))
        # A second gradient of the same call is no other sample.
        self._passes[-1][1][number] = call

    def take(self) -> list[list[Call]]:
        found = [list(calls.values()) for _, calls in self._passes]
        self._passes.clear()
        return found


def record_calls(layer: keras.layers.Embedding) -> CallRecorder:
    """Returns what notes the calls of a layer from now on, one for all optimizers."""
    if not isinstance(layer.call, CallRecorder):
        layer.call = CallRecorder(layer)
    recorder: CallRecorder = layer.call
    return recorder


def count_samples(
    passes: Sequence[Sequence[Call]], num_rows: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids of a step, and which of them count: each once for each sample.

    Calls with equally many samples, in one backward pass, are about the same samples.

    Args:
        passes: By backward pass, its calls.
        num_rows: Integer. Every id is below it.

    Returns:
        The ids, `(n,)`, as `narrow` has them, and float32 `(n,)`, ones and zeros. Their
        sum over the places of an id is the number of samples that have it.
    """
    counted = [_count_in_pass(calls, num_rows) for calls in passes]
    ids, ones = zip(*counted, strict=True)
    return tf.concat([narrow(one, num_rows) for one in ids], 0), tf.concat(ones, 0)


def _count_in_pass(calls: Sequence[Call], num_rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    # All shapes are those of the ids, also where they are distinct: with others, XLA
    # miscounts.
    if len(calls) == 1 and calls[0].width is not None:
        return _count_dense(calls[0], num_rows)
    sizes = tf.stack([call.num_samples for call in calls])
    # Samples are numbered anew from the first call with other ones.
    starts = tf.cumsum(sizes, exclusive=True)
    first = tf.argmax(sizes[:, tf.newaxis] == sizes, axis=1)
    starts = tf.unstack(tf.gather(starts, first), num=len(calls))
    ids = tf.concat([call.ids for call in calls], 0)
    samples = tf.concat(
        [call.samples + start for call, start in zip(calls, starts, strict=True)], 0
    )
    places = tf.range(tf.size(ids))
    _, pairs = tf.unique(samples * num_rows + ids)
    first_places = tf.math.unsorted_segment_min(places, pairs, tf.size(ids))
    return ids, tf.cast(tf.gather(first_places, pairs) == places, tf.float32)


def _count_dense(call: Call, num_rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Sorts the ids of each sample, so that equal ones stand side by side.

    In wide batches that is several times as fast as to tell the pairs apart.
    """
    ids = narrow(call.ids, num_rows)
    if isinstance(call.width, int) and call.width == 1:
        return ids, tf.ones_like(ids, tf.float32)
    ids = tf.sort(tf.reshape(ids, [-1, call.width]), axis=-1)
    is_new = tf.concat(
        [tf.ones_like(ids[:, :1], tf.bool), ids[:, 1:] != ids[:, :-1]], 1
    )
    return tf.reshape(ids, [-1]), tf.cast(tf.reshape(is_new, [-1]), tf.float32)


def narrow(ids: tf.Tensor, num_rows: int) -> tf.Tensor:
    """Returns ids below `num_rows` as numbers of the type that hashes faster."""
    return tf.cast(ids, tf.int32 if num_rows <= tf.int32.max else tf.int64)
