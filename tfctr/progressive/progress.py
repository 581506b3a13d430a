"""`Progress`: what a progressive run has scored so far, in memory and in files."""

import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfctr.data.time_column import NANOSECONDS
from tfctr.progressive.scored import Scored, join

_DAY = 86_400 * NANOSECONDS["s"]
_WINDOWS = "windows.json"
_SCORED = "scored.npz"
_BASELINE = "baseline "


class Progress:
    """The windows of a run, and its days of 24 hours from the first window on.

    Attributes:
        windows: List of dicts, one of each window; `start` is in nanoseconds.
        days: List of dicts, one of each day that is over.
        checksums: List of integers, one of each window, of its examples.
    """

    def __init__(self) -> None:
        self.windows: list[dict[str, Any]] = []
        self.days: list[dict[str, Any]] = []
        self.checksums: list[int] = []
        # Of the day under way: its first window, and the examples of all.
        self._first = 0
        self._end: int | None = None
        self._parts: list[Scored] = []

    def add(
        self, window: dict[str, Any], scored: Scored, checksum: int
    ) -> dict[str, Any] | None:
        """Adds the next window, and returns the day before it if that is over now."""
        over = None
        start = window["start"]
        if self._end is None:
            self._end = start + _DAY
        if start >= self._end:
            over = self.end_day()
            self._end += (start - self._end) // _DAY * _DAY + _DAY
        self.windows.append(window)
        self.checksums.append(checksum)
        self._parts.append(scored)
        return over

    def end_day(self) -> dict[str, Any]:
        """Returns the day under way, of at least one window, as it is over now."""
        windows, scored = self.windows[self._first :], join(self._parts)
        counts = {
            name: sum(window[name] for window in windows)
            for name in ("examples", "clicks", "tested_examples")
        }
        day = {"start": windows[0]["start"], **counts, **scored.metrics()} | {
            "table_rows": windows[-1]["table_rows"],
            "memory_bytes": windows[-1]["memory_bytes"],
        }
        self.days.append(day)
        self._first, self._parts = len(self.windows), []
        return day

    def to_files(self) -> dict[str, bytes]:
        """Returns everything as the contents of files, by name."""
        facts = {
            "windows": self.windows,
            "days": self.days,
            "checksums": self.checksums,
            "first": self._first,
            "end": self._end,
        }
        scored = join(self._parts)
        self._parts = [scored]
        arrays = {
            "labels": scored.labels,
            "probabilities": scored.probabilities,
            "log_labels": scored.log_labels,
            **{_BASELINE + name: of for name, of in scored.baselines.items()},
        }
        file = io.BytesIO()
        np.savez(file, **arrays)
        return {_WINDOWS: json.dumps(facts).encode(), _SCORED: file.getvalue()}

    @classmethod
    def from_files(cls, directory: pathlib.Path) -> "Progress":
        """Reads what `to_files` returned.

        Raises:
            ValueError: If it is not there.
        """
        if not (directory / _WINDOWS).is_file():
            raise ValueError(
                "A progressive run goes on from a checkpoint of its own. Received: "
                f"'{directory}', of another training. Name another run.directory."
            )
        progress = cls()
        facts: Mapping[str, Any] = json.loads((directory / _WINDOWS).read_text())
        progress.windows, progress.days = facts["windows"], facts["days"]
        progress.checksums = facts["checksums"]
        progress._first, progress._end = facts["first"], facts["end"]
        with np.load(directory / _SCORED) as arrays:
            baselines = {
                name.removeprefix(_BASELINE): arrays[name]
                for name in arrays.files
                if name.startswith(_BASELINE)
            }
            progress._parts = [
                Scored(
                    arrays["labels"],
                    arrays["probabilities"],
                    arrays["log_labels"],
                    baselines,
                )
            ]
        return progress
