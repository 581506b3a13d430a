"""`Checkpoint`: saves a training as one unit, and resumes it."""

import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_layers.number_checks import is_integer
from tfctr.callbacks.checkpoint_writer import CheckpointWriter
from tfctr.callbacks.training_guard import TrainingGuard
from tfctr.checkpoint import CheckpointDirectory
from tfctr.distributed import engine
from tfctr.distributed.dataset import count_elements


class Checkpoint(TrainingGuard):
    """Saves model, dense optimizer, tables, data position and random state as one unit.

    A checkpoint is of one moment, between two steps, and training goes on while it is
    written. It is complete or not there, whatever happens. Rows that have not changed
    since the last one are not written again.

    Several ranks save one checkpoint together, in a directory that all of them see, and
    as many, or more, or fewer resume it.

    Args:
        directory: Path. One training at a time writes to it.
        every: Integer, steps between checkpoints; `None` for one at the end of each
            epoch. There is always one at the end of the training.
        keep: Integer. How many checkpoints stay, the newest; the best one, if
            `restore_best` is given, stays as well.
        restore_best: String. Name of a logged metric such as `"val_auc"`: at the end of
            the training the model, rows included, is set to the end of the epoch where
            it was best. `None` leaves the model as it is.
        mode: String. `"max"` or `"min"`, for `restore_best`. `None` means `"min"` for
            names with "loss" or "error", else `"max"`.

    Raises:
        ValueError: If an argument is out of range, the directory is another process's,
            has checkpoints of a later step than the training begins with, or is not
            seen by all ranks; or if `restore_best` names no logged metric.

    Example:

    >>> checkpoint = Checkpoint("runs/ads/checkpoints", every=1000, keep=3)
    >>> checkpoint.step
    0

    In a script, `resume` comes before `fit`, and is the same whether there is something
    to resume or not:

        dataset, initial_epoch = checkpoint.resume(model, dataset)
        model.fit(dataset, initial_epoch=initial_epoch, epochs=5,
                  callbacks=[checkpoint])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every: int | None = None,
        keep: int = 2,
        restore_best: str | None = None,
        mode: str | None = None,
    ) -> None:
        super().__init__()
        for name, count in (("every", every), ("keep", keep)):
            if count is not None and not (is_integer(count) and count >= 1):
                raise ValueError(
                    f"`{name}` must be a positive integer. Received: {name}={count!r}."
                )
        if mode not in (None, "min", "max"):
            raise ValueError(
                f"`mode` must be 'min', 'max' or None. Received: mode={mode!r}."
            )
        self.directory = CheckpointDirectory(directory)
        self.every = every
        self._writer = CheckpointWriter(self.directory, keep)
        self.restore_best = restore_best
        down = any(word in (restore_best or "") for word in ("loss", "error"))
        self._sign = -1.0 if mode == "min" or (mode is None and down) else 1.0
        self._step = 0
        self._epoch = 0
        self._batch = 0  # Batches of this epoch that are done.
        self._first_batch = 0  # Of this epoch; not 0 in the first after a resume.
        self._saved_step = -1
        self._is_due = False
        self._best: tuple[float, int] | None = None  # Value and step.
        self._length: int | None = (
            None  # Batches of an epoch, in the first of a resume.
        )
        self._is_first_epoch: tf.Variable | None = None

    @property
    def step(self) -> int:
        """How many batches the training has seen, over all its runs."""
        return self._step

    def resume(
        self,
        model: keras.Model,
        dataset: tf.data.Dataset | Callable[[int], tf.data.Dataset],
    ) -> tuple[tf.data.Dataset, int]:
        """Sets the model to the newest checkpoint, if there is one.

        Args:
            model: Keras model, built and compiled as it was when it was saved.
            dataset: `tf.data.Dataset` of one epoch, which gives the same batches each
                time; those that were seen in the epoch that was broken off are read and
                dropped. Or a function that returns the data set of one epoch from a
                batch on, `dataset(batch)`, which spares that reading.

        Returns:
            What to pass to `fit`, as it is: the data set, and the `initial_epoch`.

        Raises:
            ValueError: If the model is not built or not as it was, the checkpoint is
                of a progressive run, a file is damaged, or the data has no end.
            tf.errors.DataLossError: If a table's file is damaged.
            tf.errors.UnavailableError: If it is missing.
        """
        if not model.built:
            raise ValueError(
                "A model has tables to restore once it is built. Received: model "
                f"'{model.name}', not built. Call it on one batch before `resume`."
            )
        self._writer.finish()
        step = self._writer.newest()
        if step is not None:
            # Before the model is changed.
            if "best" not in self.directory.read_state(step):
                raise ValueError(
                    "`Checkpoint` resumes what a `Checkpoint` has saved. Received: "
                    f"'{self.directory.of_step(step)}', of a progressive run. Go on "
                    "with it by `tfctr train`, or take its weights: "
                    "tfctr.checkpoint.restore_weights."
                )
            state = self._writer.restore(model, step)
            self._step = self._saved_step = state["step"]
            self._epoch, self._batch = state["epoch"], state["batch"]
            self._best = tuple(state["best"]) if state["best"] else None
        self._first_batch = self._batch
        return self._from_here(dataset), self._epoch

    def _from_here(
        self, dataset: tf.data.Dataset | Callable[[int], tf.data.Dataset]
    ) -> tf.data.Dataset:
        """The data set, without the batches of the broken epoch that were seen."""
        if isinstance(dataset, tf.data.Dataset):
            whole, first = dataset, dataset.skip(self._first_batch)
        else:
            whole, first = dataset(0), dataset(self._first_batch)
        if self._first_batch == 0:
            return whole
        # A variable, since `fit` makes an iterator per epoch, and only the first skips.
        self._is_first_epoch = is_first = tf.Variable(True, trainable=False)
        rest = tf.data.Dataset.range(1).flat_map(
            lambda _: _either(is_first.read_value(), first, whole)
        )
        # Keras takes the length of the first epoch for that of all, unless it is told.
        self._length = count_elements(whole)
        if self._length < 0:
            raise ValueError(
                "To resume amid an epoch, the data must have an end, which is that of "
                "an epoch. Received: a data set without one, as of repeat(). Give one "
                "epoch: dataset.take(steps_per_epoch)."
            )
        length = tf.constant(self._length, tf.int64)
        rest.cardinality = lambda: length
        return rest

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        later = [step for step in self.directory.steps() if step > self._step]
        if later:
            raise ValueError(
                f"The training begins with step {self._step}, but "
                f"'{self.directory.path}' has checkpoints up to step {later[-1]}. "
                "Continue it with `dataset, initial_epoch = checkpoint.resume(model, "
                "dataset)` before `fit`, or name another directory."
            )
        if engine.is_main():
            self.directory.lock()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._batch = self._first_batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        before = self._step
        done = self._first_batch + batch + 1
        length = self._length or self.params.get("steps")
        if length is not None:
            # The last of `steps_per_execution` steps may lie behind the end.
            done = min(done, length)
        self._step += done - self._batch
        self._batch = done
        self._writer.raise_error()
        if self.every and self._step // self.every > before // self.every:
            self._is_due = True
        # At the end of the epoch, what is to be saved is the begin of the next.
        if self._is_due and (length is None or done < length):
            self._save()
        if self._length is not None and done >= self._length:
            # Before Keras asks for one more: the step that finds the data at its end
            # still counts the optimizer's iterations and moves the seeds of Dropout.
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._epoch, self._batch, self._first_batch = epoch + 1, 0, 0
        if self._is_first_epoch is not None:
            self._is_first_epoch.assign(False)
        if self._length is not None:
            self._length = None
            self.model.stop_training = False
        is_best = self._note_best(logs or {})
        if self.every is None or is_best or self._is_due:
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        self._save()
        self._writer.finish()
        engine.barrier("checkpoint.end")  # Rank 0 has made the last one by now.
        if self._best is not None:
            self._writer.restore(self.model, self._best[1])
        self.directory.unlock()

    def _note_best(self, logs: dict[str, Any]) -> bool:
        if self.restore_best is None:
            return False
        if self.restore_best not in logs:
            raise ValueError(
                "`restore_best` must name a metric that is logged at the end of an "
                f"epoch: {', '.join(map(repr, logs))}. Received: "
                f"restore_best={self.restore_best!r}."
            )
        # That of rank 0, should the ranks not have averaged their metrics.
        [value, *_] = engine.gather_objects(
            float(logs[self.restore_best]), "checkpoint.best"
        )
        if self._best is not None and self._sign * value <= self._sign * self._best[0]:
            return False
        self._best = (value, self._step)
        return True

    def _save(self) -> None:
        """Takes the moment now, and writes it down in the background."""
        self._is_due = False
        self._writer.finish()
        if self._step == self._saved_step:
            return
        state = {
            "step": self._step,
            "epoch": self._epoch,
            "batch": self._batch,
            "best": self._best,
        }
        self._writer.begin(self.model, state)
        self._saved_step = self._step


def _either(
    condition: tf.Tensor, first: tf.data.Dataset, second: tf.data.Dataset
) -> tf.data.Dataset:
    """One of two data sets of equal elements, chosen when it is iterated."""
    everything = tf.constant(tf.int64.max, tf.int64)
    nothing = tf.constant(0, tf.int64)
    return first.take(tf.where(condition, everything, nothing)).concatenate(
        second.take(tf.where(condition, nothing, everything))
    )
