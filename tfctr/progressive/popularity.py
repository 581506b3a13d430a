"""`Popularity`: what past clicks alone say of an item, to be beaten by a model."""

import numpy as np
import numpy.typing as npt

from tfctr.data.time_column import to_span

Items = npt.NDArray[np.generic]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

# Clicks that an item is taken to have had beside those it had, lest few say much.
_PRIOR_CLICKS = 10.0


class Popularity:
    """Scores items by the clicks before a window, as baselines of its examples.

    `popularity` is an item's share of all clicks before, and `recent_popularity` that
    of the clicks of the last `recent_seconds`. Where non-clicks are drawn by the
    clicks of a pool, popularity cancels out, and what tells is its growth: `trend` is
    the share of recent clicks over the share of the pool's,

        (recent + a f) / (f (pool + a)),   f = all recent / all of the pool,   a = 10,

    an estimate of how likely an item is among clicks over how likely among non-clicks.

    Args:
        recent_seconds: Float.
        pool_seconds: Float. `None`: there is no pool, and no trend.

    Raises:
        ValueError: If one is no positive number, or beyond 146 years.

    Example:

    >>> past = Popularity(recent_seconds=1.0)
    >>> past.add(np.array([0, 10**9]), np.array([7, 8]))
    >>> scores = past.scores(1_500_000_000, np.array([7, 8, 9]))
    >>> scores["popularity"].tolist(), scores["recent_popularity"].tolist()
    ([0.5, 0.5, 0.0], [0.0, 1.0, 0.0])
    """

    def __init__(
        self, recent_seconds: float, pool_seconds: float | None = None
    ) -> None:
        self._recent = to_span(recent_seconds, "recent_seconds")
        self._pool = (
            None if pool_seconds is None else to_span(pool_seconds, "pool_seconds")
        )
        self._held = max(self._recent, self._pool or 0)
        # Of all clicks: the items, sorted, and how often each was clicked.
        self._items: Items = np.zeros(0, np.int64)
        self._counts: Int64s = np.zeros(0, np.int64)
        # The late clicks, one by one.
        self._late_times: Int64s = np.zeros(0, np.int64)
        self._late_items: Items = np.zeros(0, np.int64)

    def scores(self, start: int, items: Items) -> dict[str, Float64s]:
        """Returns, by name, the scores `(n,)` of items in a window.

        Args:
            start: Integer. Where the window begins, in nanoseconds.
            items: Array `(n,)`.
        """
        total = _look_up(self._items, self._counts, items)
        recent = self._late_counts(start - self._recent, items)
        scores = {
            "popularity": total / max(self._counts.sum(), 1),
            "recent_popularity": recent[0] / max(recent[1], 1),
        }
        if self._pool:
            pool = self._late_counts(start - self._pool, items)
            share = max(recent[1], 1) / max(pool[1], 1)
            prior = _PRIOR_CLICKS
            scores["trend"] = (recent[0] + prior * share) / (share * (pool[0] + prior))
        return scores

    def add(self, times: Int64s, items: Items) -> None:
        """Takes note of clicks.

        Args:
            times: int64 `(n,)`. In nanoseconds, not before those of earlier calls.
            items: Array `(n,)`.
        """
        if len(items) == 0:
            return
        if len(self._items) == 0:  # Now it is known what kind of ids they are.
            self._items = self._late_items = items[:0]
        known, counts = np.unique(items, return_counts=True)
        both = np.concatenate([self._items, known])
        self._items, place = np.unique(both, return_inverse=True)
        weights = np.concatenate([self._counts, counts])
        self._counts = np.bincount(place, weights).astype(np.int64)
        late = np.concatenate([self._late_times, times])
        keep = int(np.searchsorted(late, late[-1] - self._held))
        self._late_times = late[keep:]
        self._late_items = np.concatenate([self._late_items, items])[keep:]

    def _late_counts(self, since: int, items: Items) -> tuple[Float64s, int]:
        """Returns each item's clicks since some time, and those of all items."""
        clicked = self._late_items[np.searchsorted(self._late_times, since) :]
        known, counts = np.unique(clicked, return_counts=True)
        return _look_up(known, counts, items), len(clicked)


def _look_up(known: Items, counts: Int64s, items: Items) -> Float64s:
    if len(known) == 0:
        return np.zeros(len(items))
    place = np.searchsorted(known, items).clip(max=len(known) - 1)
    return np.where(known[place] == items, counts[place], 0).astype(np.float64)
