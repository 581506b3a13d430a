"""`WindowLog`: examples in memory as a click log."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfctr.data.click_log import check_split
from tfctr.data.columns import Bag, Examples
from tfctr.data.indexed_click_log import IndexedClickLog
from tfctr.feature import Feature

if TYPE_CHECKING:
    import tensorflow as tf

    from tfctr.data.indexed_click_log import Batch


class WindowLog(IndexedClickLog):
    """A click log of examples that are in memory, all in the split "train".

    Args:
        features: `Feature`s.
        examples: `Examples`.
    """

    # One trace serves all windows: another one may round otherwise.
    _tells_batch_size = False

    def __init__(self, features: Sequence[Feature], examples: Examples) -> None:
        self.features = tuple(features)
        self.examples = examples

    def num_examples(self, split: str) -> int:
        check_split(split)
        return len(self.examples) if split == "train" else 0

    def vocabulary(self, feature_name: str) -> npt.NDArray[Any]:
        column = self.examples.inputs[self.feature(feature_name).name]
        known: npt.NDArray[Any] = np.unique(
            column.values if isinstance(column, Bag) else column
        )
        return known

    def _gatherer(self, split: str) -> "Callable[[tf.Tensor], Batch]":
        import tensorflow as tf

        with tf.device("CPU:0"):
            columns = {
                feature.name: _tensor(self.examples.inputs[feature.name])
                for feature in self.features
            }
            labels = tf.constant(self.examples.labels)

        def gather(indices: "tf.Tensor") -> "Batch":
            inputs = {
                name: tf.gather(column, indices) for name, column in columns.items()
            }
            return inputs, tf.gather(labels, indices)

        return gather


def _tensor(column: Any) -> Any:
    import tensorflow as tf

    if isinstance(column, Bag):
        return tf.RaggedTensor.from_row_splits(
            tf.constant(column.values), column.row_splits, validate=False
        )
    return tf.constant(column)
