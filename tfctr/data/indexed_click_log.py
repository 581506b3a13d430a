"""`IndexedClickLog`: batches of examples that lie in memory."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfctr.data.click_log import ClickLog
from tfctr.data.epoch_order import epoch_order
from tfctr.data.number_checks import is_integer
from tfctr.data.position import START, Position

if TYPE_CHECKING:
    import tensorflow as tf

    Batch = tuple[dict[str, tf.Tensor], tf.Tensor]


class IndexedClickLog(ClickLog):
    """A click log whose examples are found by their index in the split.

    Subclasses say how the examples of some indices are gathered; order, batches and
    positions are settled here.
    """

    # Whether a model may learn the batch size while it is traced, if all are equal.
    _tells_batch_size = True

    @abc.abstractmethod
    def _gatherer(self, split: str) -> "Callable[[tf.Tensor], Batch]":
        """Returns a function, to be traced, from indices `(n,)` to their batch."""

    def batches(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        position: Position = START,
        epochs: int = 1,
        drop_remainder: bool = False,
    ) -> "tf.data.Dataset":
        import tensorflow as tf

        steps = self.steps_per_epoch(split, batch_size, drop_remainder)
        check_seed(seed)
        check_position(position, epochs, steps)
        # Narrow integers of NumPy overflow.
        batch_size, epochs = int(batch_size), int(epochs)
        num_examples = self.num_examples(split)
        is_equal = drop_remainder or num_examples % batch_size == 0
        is_static = self._tells_batch_size and is_equal

        def order_of(epoch: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return epoch_order(num_examples, seed, int(epoch), split)

        def indices_of_epoch(epoch: Any) -> Any:
            # One call into Python an epoch; batches are cut in TensorFlow.
            order = tf.numpy_function(order_of, [epoch], tf.int64, stateful=False)
            order.set_shape([num_examples])

            def indices_of_step(step: Any) -> Any:
                indices = order[step * batch_size : (step + 1) * batch_size]
                indices.set_shape([batch_size if is_static else None])
                return indices

            is_first = tf.equal(epoch, position.epoch)
            first_step = tf.where(is_first, tf.constant(position.batch, tf.int64), 0)
            return tf.data.Dataset.range(first_step, steps).map(indices_of_step)

        num_batches = (epochs - position.epoch) * steps - position.batch
        return (
            tf.data.Dataset.range(position.epoch, epochs)
            .flat_map(indices_of_epoch)
            .map(self._gatherer(split))
            .apply(tf.data.experimental.assert_cardinality(num_batches))
            .prefetch(tf.data.AUTOTUNE)
        )


def check_seed(seed: int | None) -> None:
    if seed is not None and not (is_integer(seed) and 0 <= seed < 2**63):
        raise ValueError(
            "`seed` must be an integer from 0 to 2**63 - 1, or None. "
            f"Received: seed={seed!r}. Use None for the order of the log itself."
        )


def check_position(position: Position, epochs: int, steps: int) -> None:
    if not is_integer(epochs) or epochs < 1:
        raise ValueError(
            "`epochs` must be a positive integer, the epochs of the whole run. "
            f"Received: epochs={epochs!r}. Use epochs=1 for a single pass."
        )
    if not isinstance(position, Position):
        raise TypeError(
            "`position` must be a `Position`. "
            f"Received: position={position!r}. "
            "Turn a stored dict into one: Position.from_dict(state)."
        )
    if position.batch >= steps:
        raise ValueError(
            f"`position.batch` must be below the {steps} batches of an epoch. "
            f"Received: position={position}. Resume with the batch size that the "
            "position was stored under; the end of an epoch is batch 0 of the next: "
            f"Position.advanced(num_batches, steps_per_epoch={steps})."
        )
    if (position.epoch, position.batch) > (epochs, 0):
        raise ValueError(
            f"`position` must not lie behind the end of the run, epochs={epochs}. "
            f"Received: position={position}. "
            f"Raise `epochs`, which counts from the start, to {position.epoch + 1} "
            "or more."
        )
