"""The formulas of `KStepAdam`, without its state. Steps are counted from 1."""

import math
from typing import Any

import tensorflow as tf


def is_merge_step(step: Any, k: int, first: int, warmup_merges: int) -> Any:
    """Returns whether the ranks merge in this step: in `first`, and every k-th on.

    Args:
        step: Integer or integer tensor.
        k: Integer. Steps from one merge to the next.
        first: Integer. A step of the schedule.
        warmup_merges: Integer. In so many steps at the begin they merge anyway.
    """
    return (step <= warmup_merges) | ((step - first) % k == 0)


def next_moments(
    momentum: tf.Tensor,
    velocity: tf.Tensor,
    gradient: tf.Tensor,
    beta_1: float,
    beta_2: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the running means of the gradient and of its square."""
    return (
        beta_1 * momentum + (1 - beta_1) * gradient,
        beta_2 * velocity + (1 - beta_2) * tf.square(gradient),
    )


def next_shared_velocity(
    mean_velocity: tf.Tensor, shared_velocity: tf.Tensor, epsilon: float, amsgrad: bool
) -> tf.Tensor:
    """Returns what all ranks divide by the root of, from the mean over the ranks."""
    largest = tf.maximum(mean_velocity, shared_velocity) if amsgrad else mean_velocity
    return tf.maximum(largest, epsilon)


def correct_bias(moment: tf.Tensor, beta: float, steps: Any) -> tf.Tensor:
    """Returns the moment of so many steps as if it had not begun with zero."""
    # 1 - beta**steps would lose half the digits of float32 to the first steps.
    log_beta = math.log(beta) if beta else -math.inf
    return moment / -tf.math.expm1(tf.cast(steps, moment.dtype) * log_beta)


def frozen_direction(momentum: tf.Tensor, shared_velocity: tf.Tensor) -> tf.Tensor:
    """Returns the step against the gradient, in learning rates."""
    return momentum / tf.sqrt(shared_velocity)


def adam_direction(
    momentum: tf.Tensor, velocity: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """Returns the step against the gradient, in learning rates."""
    return momentum / (tf.sqrt(velocity) + epsilon)
