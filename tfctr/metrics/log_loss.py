"""`log_loss`: how far predicted probabilities are from the labels."""

import numpy as np
import numpy.typing as npt

from tfctr.metrics.examples import check_examples, check_probabilities


def log_loss(
    labels: npt.ArrayLike, probabilities: npt.ArrayLike, epsilon: float = 1e-7
) -> float:
    """Returns the mean of `-log(probability of the label)`, in nats.

    Args:
        labels: Array of zeros and ones, of shape `(n,)`.
        probabilities: Array of numbers from 0 to 1, of shape `(n,)`.
        epsilon: Float. Probabilities are clipped to `[epsilon, 1 - epsilon]`, as Keras
            does, lest one float32 sigmoid that rounds to 1 make the loss infinite.

    Raises:
        ValueError: If a shape is wrong, a label is neither 0 nor 1, or a probability is
            NaN or out of its range.

    Example:

    >>> round(log_loss([1, 0], [0.5, 0.5]), 4)
    0.6931
    """
    is_positive, given = check_examples(labels, probabilities, "probabilities")
    check_probabilities(given)
    of_label = np.where(is_positive, given, 1 - given).clip(epsilon, 1 - epsilon)
    return float(-np.log(of_label).mean())
