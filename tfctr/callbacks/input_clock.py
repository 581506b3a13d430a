"""`InputClock`: what a training waits for its data, and how many examples it gets."""

from typing import Any

import tensorflow as tf


class InputClock:
    """Counts, as batches leave a data set, their examples and the time to get them."""

    def __init__(self) -> None:
        self.is_used = False
        with tf.device("CPU:0"):
            # Seconds, examples.
            self._counts = tf.Variable([0.0, 0.0], dtype=tf.float64, trainable=False)

    def read(self) -> tuple[float, int]:
        """Returns seconds and examples since the clock was made."""
        seconds, examples = self._counts.numpy().tolist()
        return seconds, int(examples)

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a data set of the same elements."""
        self.is_used = True
        # A zipped data set asks its parts one after the other.
        start = tf.data.Dataset.counter().map(lambda _: tf.timestamp())
        watched = tf.data.Dataset.zip((start, dataset)).map(self._note)
        # Batches fetched ahead of the training behind the clock would cost no time.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return watched.with_options(options)

    def _note(self, start: tf.Tensor, batch: Any) -> Any:
        examples = tf.cast(_num_examples(batch), tf.float64)
        self._counts.assign_add(tf.stack([tf.timestamp() - start, examples]))
        return batch


def _num_examples(batch: Any) -> tf.Tensor:
    first = tf.nest.flatten(batch)[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return tf.shape(first)[0]
