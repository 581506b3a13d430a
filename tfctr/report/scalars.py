"""`Scalars`: the events of a run for TensorBoard."""

import importlib.util
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfctr.report.events import Event
from tfctr.report.history import all_tables, speed, time_shares

FOLDER = "tensorboard"
# What is worth a plot of each table; the lines have everything.
_OF_TABLES = (
    "rows",
    "rows_on_disk_only",
    "memory_bytes",
    "disk_bytes",
    "hit_rate",
    "ssd_hit_rate",
    "clipped_share",
)
_A_STEP = (
    "rows_read",
    "rows_written",
    "stalled_lookups",
    "evicted_rows",
    "expired_rows",
    "inserted_rows",
    "refused_keys",
)


def has_tensorboard() -> bool:
    """Whether TensorBoard is there, without which TensorFlow writes no scalars."""
    return importlib.util.find_spec("tensorboard") is not None


class Scalars:
    """Writes intervals, epochs and windows as scalars, in the folder `tensorboard`.

    Args:
        directory: Path of the run.

    Raises:
        ValueError: If there is no TensorBoard, or nothing can be written there.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        if not has_tensorboard():
            raise ValueError(
                "TensorFlow writes scalars with TensorBoard. Received: "
                "tensorboard=True, and an environment without it. Install it: "
                "pip install tensorboard, or leave the argument out."
            )
        folder = pathlib.Path(directory) / FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                "Scalars for TensorBoard need a directory that can be written to. "
                f"Received: '{folder}' ({error.strerror}). Move it away, name another "
                "directory, or write none: tensorboard=False."
            ) from error
        self._folder = str(folder)
        self._writer: tf.summary.SummaryWriter | None = None  # Makes a file at once.

    def write(self, event: Event) -> None:
        if event["kind"] == "begin":
            return
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._folder)
        is_interval = event["kind"] == "steps"
        scalars = _of_interval(event) if is_interval else _of_epoch(event)
        with self._writer.as_default():
            for name, value in scalars:
                tf.summary.scalar(name, value, step=event["step"])
        self._writer.flush()


def _of_epoch(event: Event) -> Iterator[tuple[str, float]]:
    for name, value in event["metrics"].items():
        if value is not None:
            yield f"{event['kind']}/{name}", value


def _of_interval(event: Event) -> Iterator[tuple[str, float]]:
    examples_per_second = speed(event)
    if examples_per_second is not None:
        yield "speed/examples_per_second", examples_per_second
    for part, share in time_shares(event).items():
        yield f"time/{part}", share
    for name, value in event["metrics"].items():
        if value is not None:
            yield f"metrics/{name}", value
    for table, counts in event["tables"].items():
        yield from _of_table(f"tables/{table}", counts, event["steps"])
    if len(event["tables"]) > 1:
        yield from _of_table("all_tables", all_tables(event), event["steps"])


def _of_table(
    name: str, table: Mapping[str, Any], steps: int
) -> Iterator[tuple[str, float]]:
    for column in _OF_TABLES:
        if column in table:
            yield f"{name}/{column}", table[column]
    for column in _A_STEP:
        if column in table:
            yield f"{name}/{column}_a_step", table[column] / steps
