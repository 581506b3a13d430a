"""`TrainingReport`: what a training does, for people who watch it."""

import math
import os
import pathlib
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers.dynamic_embedding import layers_of
from keras_layers.number_checks import is_integer
from tfctr.callbacks.input_clock import InputClock
from tfctr.callbacks.step_meter import StepMeter, mean_metrics
from tfctr.distributed import engine
from tfctr.report.earlier import set_aside
from tfctr.report.events import Event, EventFile, EventReader
from tfctr.report.history import History, merge
from tfctr.report.page import is_behind, write_page
from tfctr.report.plots import check_matplotlib
from tfctr.report.scalars import Scalars, has_tensorboard

# Of an interval, unless `every` says it in steps: a thousandth of the training so far,
# within these bounds, lest a long one have too many. It has at most so many times the
# steps of the one before, as the first step takes what compiling takes.
_SECONDS = (5.0, 30.0)
_MOST_MORE = 8
# The page is drawn at the end of an epoch if that takes at most this share of the time.
_PAGE_SHARE = 0.05


class TrainingReport(keras.callbacks.Callback):
    """Tells what a training does: its speed, where the time goes, every table and tier.

    It writes into `directory`:

    - `events.jsonl`: a line for every interval of steps and for every epoch, or window
      of time (see `begin_window`), readable while the training runs; `python -m tfctr
      top DIRECTORY` shows it live. Counts are of the interval, sizes of its end, both
      as `EmbeddingStore.stats` explains them; those of a table that are 0 are left out.
    - `tensorboard/`: what is worth a plot of that, as scalars.
    - `report.html`: one page of numbers and plots, at the end of the training and,
      where that takes little of the time, of each epoch.

    A run that resumes goes on in the same files: what they tell of steps that it does
    again no longer counts. One that begins at step 0 is another: what an earlier one
    left there moves into a folder `earlier-1`, or the next free number. Of several
    ranks, rank 0 writes: examples, sizes and counts are sums over the ranks, times and
    metrics means.

    The time of an interval is that of its steps, without validation, in four parts.
    `input`: waiting for the next batch, if the data set is that of `watch`. `lookup`
    and `update`: at least one table is at it. `dense`: the rest, with the exchange
    between ranks, the work of Keras and of other callbacks, and the ops of
    `TfraStorage`. With `steps_per_execution`, an interval ends where a call does, and
    time in which one step updates while the next one looks up counts for both.

    It only looks on: it does not check what a `TrainingGuard` checks, and if its files
    cannot be written any more, it warns, and the training goes on.

    Args:
        directory: Path. Made if need be.
        every: Integer. Steps of an interval. `None` means about five seconds, and in
            long trainings up to thirty.
        page: Boolean. Whether to draw `report.html`, which takes matplotlib.
        tensorboard: Boolean. Whether to write scalars. `None`: if TensorBoard is there.

    Raises:
        ValueError: If `every` is not positive, `directory` cannot be written to, or
            there is no matplotlib to draw with, or no TensorBoard that was asked for.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     report = TrainingReport(directory, every=100)
    ...     dataset = report.watch(tf.data.Dataset.range(8).batch(2))
    >>> len(dataset)
    4

    In a script:

        report = TrainingReport("runs/ads")
        model.fit(report.watch(dataset), epochs=5, callbacks=[report])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every: int | None = None,
        page: bool = True,
        tensorboard: bool | None = None,
    ) -> None:
        super().__init__()
        if every is not None and not (is_integer(every) and every >= 1):
            raise ValueError(
                f"`every` must be a positive integer. Received: every={every!r}."
            )
        self.directory = pathlib.Path(directory)
        self.every = None if every is None else int(every)
        self._writes = engine.is_main()
        self._draws = page and self._writes
        if self._draws:
            check_matplotlib()
        if self._writes:
            self._file = EventFile(directory)
            writes_scalars = has_tensorboard() if tensorboard is None else tensorboard
            self._scalars = Scalars(directory) if writes_scalars else None
        self._input = InputClock()
        self._meter = StepMeter(self._input)
        self._layers: list[Any] = []
        self._step = 0
        self._iterations = -1  # Of the optimizer when the last training ended.
        # What is known of a window before it is trained on.
        self._window: Event | None = None
        self._epoch = 0
        self._of_epoch: list[Event] = []  # Merged into one.
        self._trained = 0.0  # Seconds.
        # Of this interval:
        self._due = 1
        self._steps = 0
        self._seconds = 0.0
        self._epoch_batches = 0
        self._last = self._paused = 0.0
        # Of the page:
        self._is_old = is_behind(self.directory)  # As a killed process may leave it.
        self._draw_seconds = 0.0
        self._drawn = 0.0

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the data set to give to `fit`: its batches are timed and counted.

        Without it neither the examples nor the time in `input` are known. Nothing may
        stand behind it, such as `prefetch`.

        Args:
            dataset: `tf.data.Dataset` of batches, as this rank trains on them.
        """
        return self._input.watch(dataset)

    def begin_window(
        self, number: int, start: float, metrics: Mapping[str, float]
    ) -> None:
        """Tells of a window of time, on which the model was tested and is now trained.

        The next `fit` then counts as this window, not as an epoch, and `report.html`
        waits for `draw_page`, as only the caller knows which window is the last.

        Args:
            number: Integer, from 0.
            start: Float. When the window begins, in seconds since 1970.
            metrics: Dict of floats. Of the test before the training, as all ranks
                know it.
        """
        told = {"epoch": number, "start": start, "metrics": _numbers(metrics)}
        self._window = {"kind": "window", **told}

    def draw_page(self) -> None:
        """Draws `report.html`, unless it tells of everything already."""
        if self._is_old:
            self._draw()

    def on_train_begin(self, logs: Any = None) -> None:
        self._layers = layers_of(self.model)
        self._meter.start(self._layers)
        self._steps, self._seconds = 0, 0.0
        iterations = int(self.model.optimizer.iterations)
        # `fit` may be called again to go on.
        is_begin = iterations != self._iterations
        if is_begin or self._window is None:
            self._drawn = time.perf_counter()
        if is_begin:
            self._begin(iterations)

    def _begin(self, iterations: int) -> None:
        self._step, self._due = iterations, self.every or 1
        if iterations == 0 and self._writes:
            self._try(self._set_aside)
        window = {"window": self._window["epoch"]} if self._window else {}
        self._write({"kind": "begin", "ranks": engine.size(), **window})

    def on_train_end(self, logs: Any = None) -> None:
        self._iterations = int(self.model.optimizer.iterations)
        if self._window is None:
            self.draw_page()
        self._window = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = self._window["epoch"] if self._window else epoch
        self._of_epoch = []
        self._epoch_batches = 0
        self._last = time.perf_counter()

    def on_test_begin(self, logs: Any = None) -> None:
        self._paused = time.perf_counter()

    def on_test_end(self, logs: Any = None) -> None:
        self._last += time.perf_counter() - self._paused

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        # With steps_per_execution, one call ends several batches; for the last call of
        # an epoch Keras names a batch that may lie beyond the end.
        end = min(batch + 1, (self.params or {}).get("steps") or batch + 1)
        self._steps += end - self._epoch_batches
        self._seconds += now - self._last
        self._epoch_batches, self._last = end, now
        if self._steps >= self._due:
            self._end_interval(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._steps:
            self._end_interval(logs)
        own = engine.gather_objects(_numbers(logs), "report.epoch")
        of_epoch = {**merge(self._of_epoch), "kind": "epoch", "epoch": epoch}
        window: Event = self._window or {"metrics": {}}
        metrics = {**window["metrics"], **mean_metrics(own)}
        self._write({**of_epoch, **window, "metrics": metrics})
        passed = time.perf_counter() - self._drawn
        if self._draw_seconds <= _PAGE_SHARE * passed:
            self._draw()

    def _end_interval(self, logs: Any) -> None:
        if not self._layers:
            self._layers = layers_of(self.model)  # Its first step has built it.
        done = self._meter.interval(self._seconds, _numbers(logs), self._layers)
        self._step += self._steps
        event = {"kind": "steps", "epoch": self._epoch, "steps": self._steps, **done}
        self._of_epoch = [merge([*self._of_epoch, self._write(event)])]
        self._trained += done["seconds"]
        if self.every is None:
            # From what all ranks know, so that they end the next interval together.
            seconds = min(max(self._trained / 1000, _SECONDS[0]), _SECONDS[1])
            fitting = seconds * self._steps / max(done["seconds"], 1e-6)
            self._due = max(1, min(round(fitting), _MOST_MORE * self._steps))
        self._steps, self._seconds = 0, 0.0

    def _write(self, event: Event) -> Event:
        now = round(time.time(), 3)
        event = {**event, "time": now, "step": self._step}
        self._is_old = True
        if self._writes:
            self._try(lambda: self._append(event))
        return event

    def _append(self, event: Event) -> None:
        self._file.append(event)
        if self._scalars is not None:
            self._scalars.write(event)

    def _set_aside(self) -> None:
        self.draw_page()  # If a process that was killed owed it.
        set_aside(self.directory)
        if self._scalars is not None:
            self._scalars = Scalars(self.directory)

    def _try(self, write: Callable[[], Any]) -> None:
        try:
            write()
        # `Scalars` raises ValueError.
        except (OSError, ValueError, tf.errors.OpError) as error:
            self._writes = self._draws = False
            warnings.warn(
                f"The report of this training ends: '{self.directory}' cannot be "
                f"written to any more ({error}). The training goes on.",
                stacklevel=2,
            )

    def _draw(self) -> None:
        start = time.perf_counter()
        if self._draws:
            try:
                draw(self.directory)
            except Exception as error:  # No page is worth a long training.
                self._draws = False
                warnings.warn(
                    f"The page of this training cannot be drawn: {error!r}. Nothing is "
                    "drawn any more; the training goes on.",
                    stacklevel=2,
                )
        self._is_old = False
        self._drawn = time.perf_counter()
        self._draw_seconds = self._drawn - start


def draw(directory: pathlib.Path) -> None:
    """Writes the page of a run, from all that its events tell."""
    history = History()
    history.add(EventReader(directory).read())
    write_page(history, directory)


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float | None]:
    """The logs that are numbers; `None` for NaN and infinity, which JSON lacks."""
    numbers = {}
    for name, value in (logs or {}).items():
        value = np.asarray(value)
        if value.ndim == 0 and np.issubdtype(value.dtype, np.number):
            number = float(value)
            numbers[name] = number if math.isfinite(number) else None
    return numbers
