"""What metrics demand of their labels and scores."""

import numpy as np
import numpy.typing as npt

Booleans = npt.NDArray[np.bool_]
Float64s = npt.NDArray[np.float64]


def check_examples(
    labels: npt.ArrayLike, scores: npt.ArrayLike, scores_name: str
) -> tuple[Booleans, Float64s]:
    """Returns labels and scores as arrays of shape `(n,)`, n at least 1.

    Args:
        labels: Array of zeros and ones, of shape `(n,)`.
        scores: Array of numbers, of shape `(n,)`.
        scores_name: String. What the caller calls its scores, for messages.

    Raises:
        ValueError: If a shape is wrong, a label is neither 0 nor 1, or a score is NaN.
    """
    label_array, score_array = np.asarray(labels), np.asarray(scores, np.float64)
    if label_array.ndim != 1 or label_array.shape != score_array.shape:
        raise ValueError(
            f"`labels` and `{scores_name}` must have one shape (n,). "
            f"Received: labels.shape={label_array.shape}, "
            f"{scores_name}.shape={score_array.shape}. "
            "Flatten the output of `model.predict` first: numpy.ravel(predictions)."
        )
    if label_array.size == 0:
        raise ValueError(
            f"`labels` and `{scores_name}` must hold at least one example. "
            "Received: arrays of shape (0,). Check that the split is not empty."
        )
    is_positive = label_array == 1
    is_bad = ~(is_positive | (label_array == 0))
    if is_bad.any():
        index = int(np.argmax(is_bad))
        raise ValueError(
            "`labels` must be zeros and ones. "
            f"Received: labels[{index}]={label_array[index]}. "
            "Turn ratings or counts into clicks first: labels >= threshold."
        )
    is_nan = np.isnan(score_array)
    if is_nan.any():
        raise ValueError(
            f"`{scores_name}` must not be NaN. "
            f"Received: {scores_name}[{int(np.argmax(is_nan))}]=nan, and "
            f"{int(is_nan.sum())} NaN in all. "
            "The model has diverged: lower its learning rate."
        )
    return is_positive, score_array


def check_has_both(is_positive: Booleans, reason: str) -> tuple[int, int]:
    """Returns how many labels are ones, and how many zeros.

    Args:
        is_positive: Boolean array `(n,)`.
        reason: String. Why both are needed, for the message.

    Raises:
        ValueError: If there are none of one kind.
    """
    num_positive = int(is_positive.sum())
    num_negative = is_positive.size - num_positive
    if num_positive == 0 or num_negative == 0:
        raise ValueError(
            f"{reason}, so `labels` must hold both. "
            f"Received: {num_positive} ones and {num_negative} zeros. "
            "Evaluate on more examples."
        )
    return num_positive, num_negative


def check_probabilities(given: Float64s) -> None:
    """Raises ValueError if one of `given`, `(n,)`, is not from 0 to 1."""
    is_bad = (given < 0) | (given > 1)
    if is_bad.any():
        index = int(np.argmax(is_bad))
        raise ValueError(
            "`probabilities` must be from 0 to 1. "
            f"Received: probabilities[{index}]={given[index]}. "
            "Pass logits through a sigmoid first."
        )
