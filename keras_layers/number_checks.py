"""What counts as a number among arguments: `True` does not."""

from typing import Any


def is_number(value: Any) -> bool:
    """Whether it is a Python integer or float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    """Whether it is a Python integer."""
    return isinstance(value, int) and not isinstance(value, bool)
