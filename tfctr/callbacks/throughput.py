"""Examples per second, in the progress bar and for the report."""

import time
from typing import Any

from keras_layers.number_checks import is_integer
from tfctr.callbacks.training_guard import TrainingGuard


class Throughput(TrainingGuard):
    """Adds `examples_per_second` to the logs of every batch and epoch.

    The time of validation does not count. Neither do the first batches, which trace the
    model, as soon as there are others. Every batch counts as a full one.

    Args:
        batch_size: Integer. Examples in a batch.
        warm_up_batches: Integer. How many of the first batches, over all epochs, count
            only where there are no more.

    Raises:
        ValueError: If `batch_size` is not positive, or `warm_up_batches` negative.

    Example:

    >>> Throughput(batch_size=1024).examples_per_second
    0.0
    """

    def __init__(self, batch_size: int, warm_up_batches: int = 5) -> None:
        super().__init__()
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("warm_up_batches", warm_up_batches, 0),
        ):
            if not is_integer(value) or value < least:
                raise ValueError(
                    f"`{name}` must be an integer of {least} or more. "
                    f"Received: {name}={value!r}."
                )
        self.batch_size = batch_size
        self.warm_up_batches = warm_up_batches
        self._is_warming_up = True
        self._epoch_batches = 0
        self._all_batches = 0
        self._counted_batches = 0
        self._seconds = 0.0
        self._last: float | None = None

    @property
    def examples_per_second(self) -> float:
        """The mean over all batches that count; 0 before there is a batch."""
        if self._seconds == 0.0:
            return 0.0
        return self._counted_batches * self.batch_size / self._seconds

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_batches = 0
        self._last = time.perf_counter()

    def on_test_begin(self, logs: Any = None) -> None:
        self._last = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        # With steps_per_execution, one call ends several batches; for the last call of
        # an epoch Keras names a batch that may lie beyond the end.
        end = min(batch + 1, (self.params or {}).get("steps") or batch + 1)
        ended = end - self._epoch_batches
        if self._last is not None:
            if self._is_warming_up and self._all_batches >= self.warm_up_batches:
                self._is_warming_up = False
                self._counted_batches, self._seconds = 0, 0.0
            self._counted_batches += ended
            self._seconds += now - self._last
        self._epoch_batches = end
        self._all_batches += ended
        self._last = now
        if logs is not None:
            logs["examples_per_second"] = self.examples_per_second
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["examples_per_second"] = self.examples_per_second
