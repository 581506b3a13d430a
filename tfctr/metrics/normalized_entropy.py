"""`normalized_entropy`: the log loss beside that of always saying the click rate."""

import numpy as np
import numpy.typing as npt

from tfctr.metrics.examples import check_examples, check_has_both
from tfctr.metrics.log_loss import log_loss


def normalized_entropy(
    labels: npt.ArrayLike, probabilities: npt.ArrayLike, epsilon: float = 1e-7
) -> float:
    """Returns the log loss over the entropy of the click rate of `labels`.

    Below 1 is better than knowing the click rate alone. Unlike the log loss, it can be
    compared between days and advertisers whose click rates differ.

    Args:
        labels: Array of zeros and ones, of shape `(n,)`, both among them.
        probabilities: Array of numbers from 0 to 1, of shape `(n,)`.
        epsilon: Float. As in `log_loss`.

    Raises:
        ValueError: If a shape is wrong, a label is neither 0 nor 1, all are equal, or a
            probability is NaN or out of its range.

    References:
        - He et al., 2014, "Practical Lessons from Predicting Clicks on Ads at
          Facebook", section 2.2

    Example:

    >>> normalized_entropy([1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25])
    1.0
    """
    loss = log_loss(labels, probabilities, epsilon)
    is_positive, _ = check_examples(labels, probabilities, "probabilities")
    check_has_both(is_positive, "Normalised entropy divides by the spread of clicks")
    rate = float(is_positive.mean())
    return loss / float(-(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))
