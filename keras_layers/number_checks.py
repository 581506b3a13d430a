"""What counts as a number among arguments: those of NumPy do, `True` does not."""

import dataclasses
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


def to_python_numbers(config: Any) -> None:
    """Makes all numbers in a dataclass, also in a frozen one, those of Python.

    Neither JSON nor the attributes of ops know others.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_number(value):
            plain = int(value) if is_integer(value) else float(value)
            object.__setattr__(config, field.name, plain)
