"""`auc`: how well scores rank clicks above non-clicks."""

import numpy as np
import numpy.typing as npt

from tfctr.metrics.examples import check_examples, check_has_both


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Returns the area under the ROC curve, exactly.

    The chance that a random positive example scores above a random negative one, a tie
    counting one half. Keras' `AUC` approximates it by a few hundred thresholds.

    Args:
        labels: Array of zeros and ones, of shape `(n,)`.
        scores: Array of numbers, of shape `(n,)`: probabilities or logits.

    Raises:
        ValueError: If a shape is wrong, a label is neither 0 nor 1, all labels are
            equal, or a score is NaN.

    Example:

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8])
    0.875
    """
    is_positive, score_array = check_examples(labels, scores, "scores")
    num_positive, num_negative = check_has_both(
        is_positive, "AUC compares clicks with non-clicks"
    )
    order = np.argsort(score_array)
    ranked, is_positive = score_array[order], is_positive[order]
    # Examples with equal scores form a group; `ends` is one past each group's last.
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]) + 1, ranked.size)
    positives = np.diff(np.cumsum(is_positive)[ends - 1], prepend=0)
    negatives_up_to = ends - np.cumsum(is_positive)[ends - 1]
    negatives = np.diff(negatives_up_to, prepend=0)
    # Pairs in the right order, counted twice so that ties stay integers.
    twice_right = int((positives * (2 * negatives_up_to - negatives)).sum())
    return twice_right / (2 * num_positive * num_negative)
