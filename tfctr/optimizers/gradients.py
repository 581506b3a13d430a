"""The gradients that Keras hands an optimizer: matched, dense, and clipped."""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


def without_missing(
    gradients: Sequence[Any], variables: Sequence[Any], owner: str
) -> list[tuple[Any, Any]]:
    """Returns the pairs of gradient and variable that have a gradient.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or `None`.
        variables: Keras variables.
        owner: String. Whose variables they are, for the messages.

    Raises:
        ValueError: If the numbers differ, or there is no gradient at all.
    """
    if len(gradients) != len(variables):
        raise ValueError(
            f"{owner} needs a gradient, or None, for each variable. Received: "
            f"{len(gradients)} gradients for {len(variables)} variables."
        )
    pairs = list(zip(gradients, variables, strict=True))
    missing = [variable.path for gradient, variable in pairs if gradient is None]
    if missing and len(missing) == len(pairs):
        raise ValueError(
            f"{owner} needs a gradient for one variable at least. Received: None for "
            f"{missing}. Does the loss depend on them?"
        )
    if missing:
        warnings.warn(f"The loss has no gradient for {missing}.", stacklevel=4)
    return [pair for pair in pairs if pair[0] is not None]


def densify(gradient: Any, variable: Any) -> tf.Tensor:
    """Returns the gradient of a whole variable, summed where an index stands twice."""
    if isinstance(gradient, tf.IndexedSlices):
        shape = tf.constant(tuple(variable.shape), gradient.indices.dtype)
        gradient = tf.scatter_nd(gradient.indices[:, None], gradient.values, shape)
    return tf.cast(gradient, variable.dtype)


def clip(
    gradients: list[tf.Tensor], optimizer: keras.optimizers.Optimizer
) -> list[tf.Tensor]:
    """Returns the gradients as `clipnorm` and the like of an optimizer ask for."""
    if optimizer.clipnorm:
        return [tf.clip_by_norm(one, optimizer.clipnorm) for one in gradients]
    if optimizer.clipvalue:
        low, high = -optimizer.clipvalue, optimizer.clipvalue
        return [tf.clip_by_value(one, low, high) for one in gradients]
    if optimizer.global_clipnorm:
        clipped, _ = tf.clip_by_global_norm(gradients, optimizer.global_clipnorm)
        return list(clipped)
    return gradients
