"""`NegativeSampler`: non-clicks for a log that holds clicks alone."""

import dataclasses

import numpy as np
import numpy.typing as npt

from tfctr.data.columns import Array
from tfctr.data.hashing import hash64, to_unit
from tfctr.data.number_checks import is_integer
from tfctr.data.time_column import to_span

Int64s = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class NegativeSampling:
    """How non-clicks are drawn for each click of a log that holds clicks alone.

    A non-click is the click's row with another item: that of a click drawn uniformly
    from those of the `pool_seconds` before it. So items are drawn by how often they
    were clicked, only from the past, and popularity alone does not tell clicks from
    non-clicks. The row's other columns stay: they must tell of the user and the
    circumstances, not of the item. A draw may hit the clicked item itself; it stands,
    so that items are drawn by popularity exactly.

    The draw is a function of the seed, the number of the row in the log and the log up
    to that row: equal for every length of windows and every cut into files.

    An item that nobody clicked in that time is in no non-click, and to be told by that
    alone: its clicks are trained on, but not tested.

    Args:
        num: Integer. Non-clicks of each click.
        pool_seconds: Float. 146 years at most.
        seed: Integer, from 0.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> NegativeSampling(num=4).pool_seconds
    86400.0
    """

    num: int
    pool_seconds: float = 86_400.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not is_integer(self.num) or self.num < 1:
            raise ValueError(
                f"`num` must be a positive integer. Received: num={self.num!r}. "
                "A usual number is 4."
            )
        if not is_integer(self.seed) or self.seed < 0:
            raise ValueError(
                "`seed` must be an integer of 0 or more. "
                f"Received: seed={self.seed!r}. Use 1, for example."
            )
        to_span(self.pool_seconds, "pool_seconds")


@dataclasses.dataclass(frozen=True)
class DrawnExamples:
    """The examples made of some clicks: behind each click, its non-clicks.

    Args:
        rows: int64 `(n,)`. Of which click each example is made.
        items: Array `(n,)`.
        labels: float32 `(n,)`.
        is_tested: Boolean `(n,)`. Whether the click's item was in its pool.
    """

    rows: Int64s
    items: Array
    labels: npt.NDArray[np.float32]
    is_tested: npt.NDArray[np.bool_]


class NegativeSampler:
    """Draws, going through a log in the order of time; see `NegativeSampling`."""

    def __init__(self, sampling: NegativeSampling) -> None:
        self.sampling = sampling
        self._span = to_span(sampling.pool_seconds, "pool_seconds")
        self._num_seen = 0
        # The clicks that later pools may hold.
        self._times: Int64s = np.zeros(0, np.int64)
        self._items: Array | None = None

    def draw(self, times: Int64s, items: Array) -> DrawnExamples:
        """Draws for the next clicks of the log.

        Args:
            times: int64 `(n,)`. In nanoseconds, not before those of earlier calls.
            items: Array `(n,)`.
        """
        held = len(self._times)
        all_times = np.concatenate([self._times, times])
        before = items[:0] if self._items is None else self._items
        all_items = np.concatenate([before, items])
        # The pool of a click: those of the span that lie strictly before it.
        begin = np.searchsorted(all_times, times - self._span)
        end = np.searchsorted(all_times, times)
        drawn = self._draw_in(begin, end)
        in_pool = _is_among(all_items, held, begin, end)
        self._num_seen += len(times)
        keep = int(np.searchsorted(all_times, all_times[-1] - self._span))
        self._times, self._items = all_times[keep:], all_items[keep:]

        is_made = np.ones((len(times), 1 + self.sampling.num), bool)
        is_made[:, 1:] = (end > begin)[:, None]  # An empty pool gives none.
        rows, column = np.nonzero(is_made)
        places = np.concatenate([held + np.arange(len(times))[:, None], drawn], axis=1)
        labels = (column == 0).astype(np.float32)
        return DrawnExamples(rows, all_items[places[is_made]], labels, in_pool[rows])

    def _draw_in(self, begin: Int64s, end: Int64s) -> Int64s:
        """Returns indices in `[begin, end)`, `(n, num)`."""
        number = self._num_seen + np.arange(len(begin))
        which = np.arange(self.sampling.num)
        chance = to_unit(
            hash64("negatives", self.sampling.seed, number[:, None], which[None])
        )
        size = (end - begin)[:, None]
        return begin[:, None] + (chance * size).astype(np.int64)


def _is_among(
    items: Array, first: int, begin: Int64s, end: Int64s
) -> npt.NDArray[np.bool_]:
    """Returns whether `items[first + i]` stands in `items[begin[i]:end[i]]`."""
    _, codes = np.unique(items, return_inverse=True)
    # Sorted, the places of equal items lie together: the last one before `end` decides.
    keys = codes * len(items) + np.arange(len(items))
    order = np.sort(keys)
    base = codes[first:] * len(items)
    last = np.searchsorted(order, base + end) - 1
    found: npt.NDArray[np.bool_] = (last >= 0) & (order[last] >= base + begin)
    return found
