"""`IndexedClickLog`: which examples a resumed run reads."""

import pytest
import tensorflow as tf

from tfctr.data import Feature, Position
from tfctr.data.indexed_click_log import IndexedClickLog


class Recorder(IndexedClickLog):
    """Delivers each index as its own id and remembers what it was asked for."""

    features = (Feature("id", "int64"),)

    def __init__(self, num_examples):
        self.size = num_examples
        self.read = []

    def num_examples(self, split):
        return self.size

    def vocabulary(self, feature_name):
        return list(range(self.size))

    def _gatherer(self, split):
        def remember(indices):
            self.read.extend(indices.tolist())
            return indices

        def gather(indices):
            ids = tf.ensure_shape(
                tf.numpy_function(remember, [indices], tf.int64), indices.shape
            )
            return {"id": ids}, tf.zeros_like(ids, tf.float32)

        return gather


def test_seeking_reads_nothing_before_the_position():
    log = Recorder(10)
    dataset = log.batches("train", 2, position=Position(7, 3), epochs=8)
    ids = [inputs["id"].numpy().tolist() for inputs, _ in dataset]
    assert ids == [[6, 7], [8, 9]]
    assert log.read == [6, 7, 8, 9]


def test_no_batch_spans_two_epochs():
    ids = [
        inputs["id"].numpy().tolist()
        for inputs, _ in Recorder(5).batches("train", 3, epochs=2)
    ]
    assert ids == [[0, 1, 2], [3, 4], [0, 1, 2], [3, 4]]


def test_empty_split_is_refused():
    with pytest.raises(
        ValueError,
        match="Split 'test' must hold at least one example to be read in batches. "
        "Received: none of the log's 0 examples. Give .* or use a larger log.",
    ):
        Recorder(0).batches("test", 3)
