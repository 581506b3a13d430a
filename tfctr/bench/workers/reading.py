"""What steps read from disk. Only the standard library."""

import statistics
from collections.abc import Callable
from typing import Any

from tfctr.bench.workers.loop import Step


def process_counts() -> tuple[int, int]:
    """Read calls of this process, and the bytes they made the disk deliver.

    What the page cache delivers is a read call, but no byte of the disk.
    """
    with open("/proc/self/io") as file:
        counts = dict(line.split(": ") for line in file)
    return int(counts["syscr"]), int(counts["read_bytes"])


class ReadCounter:
    """Counts, step by step, what cases read.

    Args:
        rows_read: Function that returns the rows read from disk so far.
        warm_up: Integer. First steps of each case, which do not count.
    """

    def __init__(self, rows_read: Callable[[], int], warm_up: int) -> None:
        self._rows_read = rows_read
        self._warm_up = warm_up
        self._counts: dict[str, list[tuple[int, int, int]]] = {}

    def counted(self, case: str, step: Step) -> Step:
        """The same step, counted as one of `case`."""
        counts = self._counts.setdefault(case, [])

        def run(i: int) -> object:
            before = self._now()
            result = step(i)
            calls, disk_bytes, rows = map(int.__sub__, self._now(), before)
            counts.append((calls, disk_bytes, rows))
            return result

        return run

    def facts(self) -> dict[str, Any]:
        """For each case, the median counts of a step."""
        return {case: self._medians(counts) for case, counts in self._counts.items()}

    def _now(self) -> tuple[int, int, int]:
        return (*process_counts(), self._rows_read())

    def _medians(self, counts: list[tuple[int, int, int]]) -> dict[str, float]:
        columns = zip(*counts[self._warm_up :], strict=True)
        names = ("read_calls", "disk_bytes", "rows_read")
        return dict(zip(names, map(statistics.median, columns), strict=True))
