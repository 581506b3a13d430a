"""`events.jsonl`: what a training tells of itself, a line at a time."""

import json
import math
import os
import pathlib
from typing import Any

FILE_NAME = "events.jsonl"
_KINDS = ("begin", "steps", "epoch", "window")
# What every event has, and what those of intervals, epochs and windows have besides.
_NUMBERS = ("step", "time")
_OF_STEPS = ("epoch", "steps", "seconds")
_OTHERS = ("kind", "metrics", "tables")

Event = dict[str, Any]


def has_events(directory: str | os.PathLike[str]) -> bool:
    """Returns whether a run has told of anything."""
    file = pathlib.Path(directory) / FILE_NAME
    return file.exists() and file.stat().st_size > 0


class EventFile:
    """Appends events to the file of a run, each at once and whole.

    Args:
        directory: Path. Made if need be.

    Raises:
        ValueError: If nothing can be written there.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(directory) / FILE_NAME
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("ab").close()
        except OSError as error:
            raise ValueError(
                "`directory` must be a directory that can be written to, or a place to "
                f"make one. Received: directory='{directory}' ({error.strerror})."
            ) from error

    def append(self, event: Event) -> None:
        with self.path.open("a+b") as file:
            # A process that was killed may have left the beginning of a line.
            is_cut = file.tell() > 0 and _last_byte(file) != b"\n"
            text = json.dumps(event, allow_nan=False).encode()
            file.write((b"\n" if is_cut else b"") + text + b"\n")


class EventReader:
    """Reads the events of a run, and later those that have come.

    A line that is still being written waits for its end; one that a killed process
    left unfinished is passed over.

    Args:
        directory: Path of the run.

    Raises:
        ValueError: If it has no events.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(directory) / FILE_NAME
        self._offset = 0
        self._inode: int | None = None
        if not self.path.is_file():
            raise ValueError(
                f"A run that is watched has a file '{FILE_NAME}', which "
                f"`TrainingReport` writes. Received: '{directory}', which "
                + ("has none" if self.path.parent.is_dir() else "is no directory")
                + ". Train with it: python -m tfctr train CONFIG --set run.report=true "
                f"--set run.directory='{directory}', or in a script callbacks="
                f"[tfctr.callbacks.TrainingReport('{directory}')]."
            )

    def read(self) -> list[Event]:
        """Returns the events since the last call."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return []  # Another run begins in a new file, in a moment.
        with file:
            facts = os.fstat(file.fileno())
            if facts.st_ino != self._inode or facts.st_size < self._offset:
                self._inode, self._offset = facts.st_ino, 0
            file.seek(self._offset)
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._offset += end
        events = map(_parse, text[:end].splitlines())
        return [event for event in events if event is not None]


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    last: bytes = file.read(1)
    return last


def _parse(line: bytes) -> Event | None:
    """Returns the event of a line; `None` if it is none that `TrainingReport` wrote."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if _is_event(event) else None


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("kind") not in _KINDS:
        return False
    needed: tuple[str, ...] = _NUMBERS
    numbers = [event[name] for name in event if name not in _OTHERS]
    if event["kind"] != "begin":
        needed += _OF_STEPS + (("start",) if event["kind"] == "window" else ())
        metrics, tables = event.get("metrics"), event.get("tables")
        if not isinstance(metrics, dict) or not isinstance(tables, dict):
            return False
        for part in (metrics, *tables.values()):
            if not isinstance(part, dict):
                return False
            numbers += part.values()
    is_there = all(event.get(name) is not None for name in needed)
    return is_there and all(map(_is_number_or_none, numbers))


def _is_number_or_none(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value is None or (is_number and math.isfinite(value))
