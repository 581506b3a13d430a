"""Belady: the fewest rows that a memory of some size can miss.

The policies of the store are judged by it; it needs to know the future, so no store can
follow it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_NEVER = 1 << 40


def fewest_misses(
    batches: Sequence[Int32s],
    capacity: int,
    lookahead: int | None = None,
    beyond: str = "lru",
) -> Int64s:
    """Counts the rows of each batch that are not in memory when it comes.

    All rows of a batch are needed at once. To make room for those that are missing,
    the other rows leave whose next use is farthest away. A batch of more rows than fit
    is held all the same, and the rest of it leaves with the next one.

    Args:
        batches: int32 `(n,)` each: different rows, numbered from 0.
        capacity: Integer. Rows that memory takes.
        lookahead: Integer. How many batches after the current one are known. `None`
            means all.
        beyond: String. Which of the rows leave first whose next use is not known:
            `"lru"`, those used the longest ago; `"lfu"`, those used in the fewest
            batches so far, and of these the ones used the longest ago.

    Returns:
        int64 `(len(batches),)`.

    Example:

    >>> rows = [np.array(ids, np.int32) for ids in ([0, 1], [2], [0], [1])]
    >>> fewest_misses(rows, capacity=2).tolist()
    [2, 1, 0, 1]
    """
    num_rows = 1 + max((int(batch.max()) for batch in batches if batch.size), default=0)
    upcoming, next_uses = _next_uses(batches, num_rows)
    last_use = np.zeros(num_rows, np.int64)
    num_uses = np.zeros(num_rows, np.int64)
    is_in_memory = np.zeros(num_rows, bool)
    in_batch = np.zeros(num_rows, bool)
    memory = np.zeros(0, np.int32)
    misses = np.zeros(len(batches), np.int64)
    for number, batch in enumerate(batches):
        misses[number] = batch.size - np.count_nonzero(is_in_memory[batch])
        in_batch[batch] = True
        others = memory[~in_batch[memory]]
        in_batch[batch] = False
        room = max(capacity - batch.size, 0)
        if others.size > room:
            distance = upcoming[others]
            if lookahead is not None:
                uses = num_uses[others] if beyond == "lfu" else 0
                # Used more often, or later, is nearer; all are behind what is known.
                guess = _NEVER - uses * len(batches) - last_use[others]
                distance = np.where(distance <= number + lookahead, distance, guess)
            order = np.argpartition(distance, room) if room else np.arange(others.size)
            is_in_memory[others[order[room:]]] = False
            others = others[order[:room]]
        is_in_memory[batch] = True
        memory = np.concatenate([others, batch])
        upcoming[batch] = next_uses[number]
        last_use[batch] = number
        num_uses[batch] += 1
    return misses


def _next_uses(batches: Sequence[Int32s], num_rows: int) -> tuple[Int64s, list[Int64s]]:
    """Returns the first batch of each row, and the next one of each row of a batch."""
    upcoming = np.full(num_rows, _NEVER, np.int64)
    next_uses = []
    for number in reversed(range(len(batches))):
        next_uses.append(upcoming[batches[number]])
        upcoming[batches[number]] = number
    return upcoming, next_uses[::-1]
