"""Sizes as people write them."""

import re

from keras_layers.number_checks import is_integer

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_bytes(name: str, size: int | str) -> int:
    """Returns the number of bytes that `size` stands for.

    Args:
        name: String. What the size is of, for the message.
        size: Integer, or string such as `"4GB"` (4e9 bytes) or `"512 MiB"`.

    Raises:
        ValueError: If `size` cannot be read or is not positive.
    """
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        unit = _UNITS.get(match[2].upper()) if match else None
        value = int(float(match[1]) * unit) if match and unit else 0
    else:
        value = int(size) if is_integer(size) else 0
    if value <= 0:
        raise ValueError(
            f"`{name}` must be a positive number of bytes, such as 4000000000, '4GB' "
            f"or '512MiB'. Received: {name}={size!r}."
        )
    return value


def format_bytes(size: float) -> str:
    """Returns `size` in the largest decimal unit that leaves a whole digit."""
    for unit in ("TB", "GB", "MB", "KB"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.1f} {unit}"
    return f"{size:.0f} B"
