"""`calibration`: whether as many clicks come as were predicted."""

import numpy.typing as npt

from tfctr.metrics.examples import check_examples, check_probabilities


def calibration(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Returns predicted clicks over clicks: 1 is right, above 1 promises too many.

    Args:
        labels: Array of zeros and ones, of shape `(n,)`, with a one among them.
        probabilities: Array of numbers from 0 to 1, of shape `(n,)`.

    Raises:
        ValueError: If a shape is wrong, a label is neither 0 nor 1, there is no click,
            or a probability is NaN or out of its range.

    References:
        - He et al., 2014, "Practical Lessons from Predicting Clicks on Ads at
          Facebook", section 2.2

    Example:

    >>> calibration([1, 0, 0, 0], [0.5, 0.5, 0.25, 0.25])
    1.5
    """
    is_positive, given = check_examples(labels, probabilities, "probabilities")
    check_probabilities(given)
    clicks = int(is_positive.sum())
    if clicks == 0:
        raise ValueError(
            "Calibration is predicted clicks over clicks, so `labels` must hold a "
            f"click. Received: {is_positive.size} zeros. Evaluate on more examples."
        )
    return float(given.sum()) / clicks
