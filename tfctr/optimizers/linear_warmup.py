"""`LinearWarmup`: the schedule of the dense weights in large batches."""

import math
from typing import Any

import keras
import tensorflow as tf

from keras_layers.number_checks import is_integer, is_number

# The learning rate of the first step of a warm-up.
_START = 1e-8


@keras.saving.register_keras_serializable(package="tfctr")
class LinearWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that grows linearly from 1e-8 to its target, and stays there.

    For the dense weights of a model that is trained in large batches, over the first
    epoch.

    Args:
        learning_rate: Float. The target.
        warmup_steps: Integer. In how many steps it is reached. 0: at once.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> schedule = LinearWarmup(0.5, warmup_steps=100)
    >>> [round(float(schedule(step)), 3) for step in (0, 50, 100, 900)]
    [0.0, 0.25, 0.5, 0.5]
    """

    def __init__(self, learning_rate: float, warmup_steps: int) -> None:
        if not is_number(learning_rate) or not 0 <= learning_rate < math.inf:
            raise ValueError(
                "`learning_rate` must be a finite number, not negative. Received: "
                f"learning_rate={learning_rate!r}."
            )
        if not is_integer(warmup_steps) or warmup_steps < 0:
            raise ValueError(
                "`warmup_steps` must be an integer, not negative. Received: "
                f"warmup_steps={warmup_steps!r}."
            )
        self.learning_rate: float = float(learning_rate)
        self.warmup_steps: int = int(warmup_steps)

    def __call__(self, step: Any) -> tf.Tensor:
        passed = tf.cast(step, tf.float32) / max(self.warmup_steps, 1)
        target = tf.constant(self.learning_rate, tf.float32)
        rising = _START + (target - _START) * passed
        return tf.where(tf.cast(step, tf.float32) < self.warmup_steps, rising, target)

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
        }
