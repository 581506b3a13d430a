"""The loss of every single step, which Keras' running means hide."""

from typing import Any

from tfctr.callbacks.training_guard import TrainingGuard


class StepLosses(TrainingGuard):
    """Records the loss of each step in `losses`, a list of floats.

    Keras logs the mean since the epoch began. This callback resets that mean before
    each step, so that the progress bar, too, shows the loss of the last step; the
    epoch's loss is then that of its last step. With `steps_per_execution`, an entry is
    the mean of so many steps.

    Example:

    >>> StepLosses().losses
    []
    """

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        for metric in self.model.metrics:
            if metric.name == "loss":
                metric.reset_state()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self.losses.append(float((logs or {})["loss"]))
