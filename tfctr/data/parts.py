"""`Part`: those examples of a block that belong to a split."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tfctr.data.hashing import hash64, to_unit

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Says which examples of a block chance gave to a split.

    The split of an example follows from its number in the log alone.

    Args:
        first_example: Integer. Number in the log of the first example of the block.
        share: Float. Of the examples that are for the test.
        is_test: Boolean. Whether these are the ones for the test.
    """

    first_example: int
    share: float
    is_test: bool

    def rows(self, start: int, stop: int) -> IntArray:
        """Returns those of the examples `start` to `stop` of the block."""
        numbers = np.arange(start, stop) + self.first_example
        is_test = to_unit(hash64("random split", numbers)) < self.share
        return start + np.flatnonzero(is_test == self.is_test)


@dataclasses.dataclass(frozen=True)
class Part:
    """Those examples of a block that belong to a split.

    Args:
        block: Integer. Number of the block.
        start: Integer. Its examples are from there on,
        stop: Integer. and before this one:
        count: Integer. so many,
        drawn: `Drawn`, which says which ones. `None`: all of them.
    """

    block: int
    start: int
    stop: int
    count: int
    drawn: Drawn | None = None

    def __len__(self) -> int:
        return self.count

    def rows(self) -> IntArray | slice:
        """Returns which of the block's examples they are."""
        if self.drawn is None:
            return slice(self.start, self.stop)
        return self.drawn.rows(self.start, self.stop)


def cut(counts: Sequence[int], start: int, stop: int) -> list[Part]:
    """Returns the parts of blocks that hold examples `start` to `stop` of the log.

    Args:
        counts: Integers. Examples of each block.
        start: Integer.
        stop: Integer.
    """
    parts = []
    first = 0
    for block, count in enumerate(counts):
        begin, end = max(start - first, 0), min(stop - first, count)
        if begin < end:
            parts.append(Part(block, begin, end, end - begin))
        first += count
    return parts


def draw(counts: Sequence[int], share: float, is_test: bool) -> list[Part]:
    """Returns the parts of blocks that chance gave to a split.

    Args:
        counts: Integers. Examples of each block.
        share: Float. Of the examples that are for the test.
        is_test: Boolean. Whether those are asked for.
    """
    parts = []
    first = 0
    for block, count in enumerate(counts):
        drawn = Drawn(first, share, is_test)
        found = len(drawn.rows(0, count))
        if found:
            parts.append(Part(block, 0, count, found, drawn))
        first += count
    return parts
