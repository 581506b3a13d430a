"""`Trace`: which rows the batches of a training need, one after the other."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfctr.bench.workload import Workload
from tfctr.data.bad_lines import BadLines
from tfctr.data.movielens_files import read_ratings

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Trace:
    """The different rows of each batch, numbered from 0, with a scan near the end.

    A scan is a burst of rows that come once. It has as many as memory takes, in
    batches of the usual size, and comes after nine tenths of the batches.

    Args:
        name: String.
        batches: int32 `(n,)` each, ascending.
        num_rows: Integer. Different rows, those of the scan apart.
        scan_start: Integer. The first batch of the scan.
        scan_end: Integer. The first batch after it.

    Example:

    >>> batches = [np.array([0, 1]), np.array([1, 2])] * 10
    >>> trace = Trace.with_scan("small", batches, scan_rows=3)
    >>> trace.scan_start, [batch.tolist() for batch in trace.batches[18:20]]
    (18, [[3, 4], [5]])
    """

    name: str
    batches: tuple[Int32s, ...]
    num_rows: int
    scan_start: int
    scan_end: int

    @classmethod
    def with_scan(
        cls,
        name: str,
        batches: Sequence[npt.NDArray[np.int64]],
        scan_rows: int | None = None,
    ) -> "Trace":
        """Numbers the rows of batches of any ids, and puts a scan between them.

        Args:
            name: String.
            batches: Ids, each batch `(n,)` and unique.
            scan_rows: Integer. Rows of the scan. `None` means a tenth of all others.
        """
        ids, numbers = np.unique(np.concatenate(batches), return_inverse=True)
        ends = np.cumsum([batch.size for batch in batches])
        rows = np.split(numbers.reshape(-1).astype(np.int32), ends[:-1])
        size = int(np.median([batch.size for batch in rows]))
        last = ids.size + (ids.size // 10 if scan_rows is None else scan_rows)
        scan = [
            np.arange(start, min(start + size, last), dtype=np.int32)
            for start in range(ids.size, last, size)
        ]
        at = len(rows) * 9 // 10
        return cls(name, (*rows[:at], *scan, *rows[at:]), ids.size, at, at + len(scan))


def workload_trace(workload: Workload, num_batches: int) -> Trace:
    """Batches of a workload, drawn anew for every step."""
    batches = []
    for number in range(num_batches):
        # One at a time: all together they would not fit a small machine.
        drawn = dataclasses.replace(
            workload, num_batches=1, seed=workload.seed + 1000 + number
        )
        batches.append(np.unique(drawn.batches()[0] + drawn.offsets()))
    return Trace.with_scan("W4", batches)


def movielens_trace(directory: str | os.PathLike[str], batch_size: int) -> Trace:
    """The users and movies of MovieLens 1M, rating after rating in order of time.

    Args:
        directory: String or path. It holds `ratings.dat`.
        batch_size: Integer. Ratings of a batch.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    path = pathlib.Path(directory) / "ratings.dat"
    if not path.is_file():
        raise FileNotFoundError(
            "--data must name the directory of MovieLens 1M, with its ratings.dat. "
            f"Received: --data {directory}. Download ml-1m.zip from grouplens.org and "
            "unpack it."
        )
    ratings = read_ratings(path, BadLines("raise"))
    order = np.argsort(ratings.timestamp, kind="stable")
    # Odd ids are movies, so that they and users keep apart.
    keys = np.stack([2 * ratings.user[order], 2 * ratings.movie[order] + 1], axis=1)
    batches = [
        np.unique(keys[start : start + batch_size])
        for start in range(0, len(keys), batch_size)
    ]
    return Trace.with_scan("MovieLens", batches)
