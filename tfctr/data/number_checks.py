"""As `keras_layers.number_checks`, for readers, which do not start TensorFlow."""

import numbers
from typing import Any

import numpy as np

# NumPy's durations are integers to Python.
_NO_NUMBERS = (bool, np.timedelta64)


def is_number(value: Any) -> bool:
    """Whether it is an integer or a float."""
    return isinstance(value, numbers.Real) and not isinstance(value, _NO_NUMBERS)


def is_integer(value: Any) -> bool:
    """Whether it is an integer."""
    return isinstance(value, numbers.Integral) and not isinstance(value, _NO_NUMBERS)
