"""`ClickLog`: what every reader and generator of examples offers."""

import abc
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from tfctr.data.epoch_order import SPLITS
from tfctr.data.number_checks import is_integer
from tfctr.data.position import START, Position
from tfctr.feature import Feature

if TYPE_CHECKING:
    import tensorflow as tf


class ClickLog(abc.ABC):
    """Examples of a click log, in a train and a test split, as seekable batches.

    Subclasses set `features`, a tuple of `Feature`, and hold or find their examples.

    Example: a run that stopped after 10 batches of 16 goes on where it stopped.

    >>> from tfctr.data import Position, SyntheticClickLog
    >>> log = SyntheticClickLog(num_examples=100)
    >>> steps = log.steps_per_epoch("train", batch_size=16)
    >>> position = Position().advanced(10, steps)
    >>> position
    Position(epoch=1, batch=4)
    >>> rest = log.batches("train", 16, seed=1, position=position, epochs=2)
    >>> len(rest)
    2
    """

    features: tuple[Feature, ...]

    @abc.abstractmethod
    def num_examples(self, split: str) -> int:
        """Returns the number of examples in `split`, "train" or "test"."""

    @abc.abstractmethod
    def batches(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        position: Position = START,
        epochs: int = 1,
        drop_remainder: bool = False,
    ) -> "tf.data.Dataset":
        """Returns the batches of a run from `position` to its end.

        What is delivered equals, to the bit, what the run that began at
        `Position(0, 0)` delivers from there on; nothing before it is read. An epoch's
        order is a pure function of (seed, epoch, split). No batch spans two epochs.

        Args:
            split: String. "train" or "test".
            batch_size: Integer. Number of examples in a batch.
            seed: Integer. Shuffles every epoch anew. `None` means the log's order.
            position: `Position`. The next batch to deliver.
            epochs: Integer. Epochs of the whole run, those before `position`
                included.
            drop_remainder: Boolean. Whether to leave out the last batch of an epoch
                if it has fewer than `batch_size` examples.

        Returns:
            `tf.data.Dataset` of pairs `(inputs, labels)`: a dict with one tensor per
            feature, and a float32 tensor of shape `(batch,)` of zeros and ones. Its
            cardinality is known.

        Raises:
            ValueError: If an argument is out of its range.
        """

    @abc.abstractmethod
    def vocabulary(self, feature_name: str) -> npt.NDArray[Any]:
        """Returns the sorted distinct ids of a feature in the whole log, both splits.

        Returns:
            int64 array or array of strings. The columns of a wide feature are taken
            together.

        Raises:
            ValueError: If there is no such feature or it is dense.
        """

    def steps_per_epoch(
        self, split: str, batch_size: int, drop_remainder: bool = False
    ) -> int:
        """Returns the number of batches that an epoch of `batches` has."""
        if not is_integer(batch_size) or batch_size < 1:
            raise ValueError(
                "`batch_size` must be a positive integer. "
                f"Received: batch_size={batch_size!r}. A usual value is 1024."
            )
        num_examples = self.num_examples(split)
        if num_examples == 0:
            num_all = sum(map(self.num_examples, SPLITS))
            raise ValueError(
                f"Split '{split}' must hold at least one example to be read in "
                f"batches. Received: none of the log's {num_all} examples. Give the "
                "test split another share, such as test=0.1, or use a larger log."
            )
        steps, remainder = divmod(num_examples, int(batch_size))
        if remainder and not drop_remainder:
            steps += 1
        if steps == 0:
            raise ValueError(
                "An epoch must have at least one batch. "
                f"Received: batch_size={batch_size}, drop_remainder=True, and "
                f"{num_examples} examples in split '{split}'. Lower `batch_size` to "
                f"{num_examples} or less, or keep the remainder."
            )
        return steps

    def feature(self, name: str) -> Feature:
        """Returns the feature called `name`.

        Raises:
            ValueError: If there is none.
        """
        for feature in self.features:
            if feature.name == name:
                return feature
        names = ", ".join(repr(feature.name) for feature in self.features)
        raise ValueError(
            f"A feature of {type(self).__name__} must be one of {names}. "
            f"Received: {name!r}. Correct the name."
        )


def check_split(split: str) -> None:
    """Raises ValueError unless `split` is "train" or "test"."""
    if split not in SPLITS:
        raise ValueError(
            f"`split` must be one of {', '.join(map(repr, SPLITS))}. "
            f"Received: split={split!r}. For validation, use 'test'."
        )
