"""What a value of a configuration must be, said by the names of the TOML file."""

import math
from typing import Any


def require(is_good: bool, name: str, expected: str, value: Any) -> None:
    """Raises ValueError that says what was expected, and what came."""
    if not is_good:
        raise ValueError(f"'{name}' must be {expected}. Received: {name}={value!r}.")


def require_rate(name: str, value: float) -> None:
    """Raises ValueError unless a value is a finite number, not negative."""
    is_good = math.isfinite(value) and value >= 0.0
    require(is_good, name, "a finite number, not negative", value)
