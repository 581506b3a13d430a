"""`SavedRun`: the checkpoints of a progressive run, from which it goes on."""

import json
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras

from tfctr.callbacks.checkpoint_writer import CheckpointWriter
from tfctr.checkpoint import CheckpointDirectory
from tfctr.config import TrainConfig
from tfctr.data import TimeWindow
from tfctr.distributed import engine
from tfctr.progressive.progress import Progress

_KEEP = 2
# What changes no result: where things are, and how they are watched and kept.
_MAY_CHANGE = {
    *("data.path", "data.on_bad_line", "run.directory", "run.report", "run.mode"),
    *("tables.ram", "tables.ssd", "tables.ssd_limit", "tables.eviction_policy"),
    *("run.steps_per_execution", "progressive.checkpoint_every"),
}
_OF_THE_LAST = (
    " This is the last window that was trained, and rows that are added to it are "
    "refused: give the run whole windows only, or remove its newest checkpoint, to go "
    "back to the one before it, or to the beginning."
)


class SavedRun:
    """Saves a run after windows, and goes on with it. All ranks call its methods.

    What past windows leave to later ones, such as their clicks, is not saved: it is
    read again, and `same_windows` finds out whether the log still begins as it did.

    Args:
        config: `TrainConfig`.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._every = config.progressive.checkpoint_every
        self._config = _settings(config)
        self._directory = CheckpointDirectory(
            pathlib.Path(config.run.directory) / "checkpoints"
        )
        self._writer = CheckpointWriter(self._directory, _KEEP)
        self._saved_step = 0

    def begin(self, model: keras.Model) -> tuple[Progress, int]:
        """Sets the model to where the run stood, and returns the progress and step.

        Raises:
            ValueError: If another process has the directory, the config says otherwise
                than that of the run, or a checkpoint is damaged.
        """
        if not self._every:
            return Progress(), 0
        if engine.is_main():
            self._directory.lock()
        step = self._writer.newest()
        if step is None:
            return Progress(), 0
        # That of another training has none, and is refused next.
        if (saved := self._directory.read_state(step).get("config")) is not None:
            self._check_config(saved)
        progress = Progress.from_files(self._directory.of_step(step))
        self._writer.restore(model, step)
        self._saved_step = step
        return progress, step

    def save(self, model: keras.Model, progress: Progress, step: int) -> None:
        """Saves the run after its last window, if it is time to."""
        self._writer.raise_error()
        if self._every and len(progress.windows) % self._every == 0:
            self._save(model, progress, step)

    def end(self, model: keras.Model, progress: Progress, step: int) -> None:
        """Saves the run at its end, and waits until that is on the disk."""
        if not self._every:
            return
        if step != self._saved_step:
            self._save(model, progress, step)
        self._writer.finish()
        engine.barrier("progressive.end")  # Rank 0 has made the last one by now.

    def close(self) -> None:
        """Leaves the directory to others."""
        self._writer.wait()
        self._directory.unlock()

    def _save(self, model: keras.Model, progress: Progress, step: int) -> None:
        state = {
            "step": step,
            # `inspect` shows it so: a window is what one `fit` goes through.
            "epoch": len(progress.windows),
            "batch": 0,
            "config": self._config,
        }
        files = progress.to_files() if engine.is_main() else None
        self._writer.begin(model, state, files)
        self._saved_step = step

    def _check_config(self, saved: dict[str, Any]) -> None:
        # What only a later tfctr knows was at its default.
        saved = {**_settings(TrainConfig()), **saved}
        names = [name for name, value in self._config.items() if saved[name] != value]
        if names:
            expected = ", ".join(f"{name}={saved[name]!r}" for name in names)
            received = ", ".join(f"{name}={self._config[name]!r}" for name in names)
            raise ValueError(
                f"A run goes on as it began, and '{self._directory.path}' holds the "
                f"checkpoints of one. Expected: {expected}. Received: {received}. Set "
                "that back, or name another run.directory to begin anew."
            )


def _settings(config: TrainConfig) -> dict[str, Any]:
    """What a run must not change, by name, as JSON gives it back."""
    sections = json.loads(json.dumps(config.to_dict()))
    features = sections.pop("features")
    return {
        f"{section}.{name}": value
        for section, entries in sections.items()
        for name, value in entries.items()
        if f"{section}.{name}" not in _MAY_CHANGE
    } | {"features": features}


def same_windows(
    progress: Progress, windows: Iterator[TimeWindow]
) -> Iterator[TimeWindow]:
    """Yields the windows of the log that a run has gone through.

    Args:
        progress: `Progress` of the run.
        windows: Iterator of `TimeWindow`s, from the first one on. Those that follow
            stay in it.

    Raises:
        ValueError: If one is not as the run saw it: its start, or the times, labels or
            features of its examples.
    """
    last = len(progress.windows)
    for number, seen in enumerate(progress.windows, 1):
        expected = _Facts(
            seen["examples"],
            seen["clicks"],
            progress.checksums[number - 1],
            seen["start"],
        )
        window = next(windows, None)
        received = None if window is None else _facts(window)
        if window is None or received != expected:
            raise ValueError(
                "A run goes on with the log that it began with: what its windows leave "
                f"to later ones is read again. Expected: {expected}. Received: "
                f"{received or 'the end of the log'}. Restore the files, add rows "
                "behind the last window only, or name another run.directory to begin "
                f"anew.{_OF_THE_LAST if number == last else ''}"
            )
        yield window


def checksum(window: TimeWindow) -> int:
    """Returns the CRC-32 of the times, labels and features of a window."""
    found = 0
    for array in (window.times, *window.log.examples.arrays()):
        # Texts are objects of bytes.
        is_text = array.dtype == object
        content = b"\0".join(array) if is_text else array.tobytes()
        found = zlib.crc32(content, found)
    return found


class _Facts(NamedTuple):
    """What is compared of a window."""

    examples: int
    clicks: int
    checksum: int
    start: int

    def __str__(self) -> str:
        return (
            f"{self.examples:,} examples and {self.clicks:,} clicks, of checksum "
            f"{self.checksum:08x}, in the window from {self.start:,} ns since 1970 on"
        )


def _facts(window: TimeWindow) -> _Facts:
    clicks = int(window.labels.sum())
    return _Facts(len(window.labels), clicks, checksum(window), window.start)
