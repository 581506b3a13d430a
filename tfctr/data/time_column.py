"""`TimeColumn`: which column tells the time of a row, and in which unit."""

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
# Of a span, and of a time before 1970: one less the other stays within 64 bits.
_MOST = 2**62


def to_span(seconds: float, argument: str) -> int:
    """Returns a length of time in nanoseconds.

    Args:
        seconds: Float.
        argument: String. Its name, for messages.

    Raises:
        ValueError: If it is no positive number, or beyond 146 years.
    """
    nanoseconds = seconds * NANOSECONDS["s"]  # Infinite, maybe, though seconds are not.
    span = round(nanoseconds) if math.isfinite(nanoseconds) else 0
    if not 0 < span <= _MOST:
        raise ValueError(
            f"`{argument}` must be a positive number of seconds, of 146 years at most. "
            f"Received: {argument}={seconds!r}. An hour is 3600, a day 86400."
        )
    return span


@dataclasses.dataclass(frozen=True)
class TimeColumn:
    """Names the column of time of a log whose rows are in its order.

    Args:
        name: String. A column of integers since 1970, or of timestamps, which have a
            unit of their own.
        unit: String. "s", "ms", "us" or "ns". What the integers count.

    Raises:
        ValueError: If the name is empty, or the unit is unknown.

    Example:

    >>> TimeColumn("click_timestamp", "ms").unit
    'ms'
    """

    name: str
    unit: str = "s"

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(
                "A log in the order of time must say which column tells the time. "
                "Received: an empty name. Set progressive.time to the column's name."
            )
        if self.unit not in NANOSECONDS:
            raise ValueError(
                f"The unit of time must be one of {', '.join(map(repr, NANOSECONDS))}. "
                f"Received: {self.unit!r}. Correct progressive.time_unit."
            )

    def check_type(self, kind: Any, file: pathlib.Path) -> None:
        """Raises ValueError unless a column of this Arrow type can tell the time."""
        import pyarrow as pa

        if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
            raise ValueError(
                f"{file}, column '{self.name}', must hold the time: integers or "
                f"timestamps. Received: {kind}. Name another column, or write this one "
                "anew."
            )

    def read(self, column: Any, where: str, first_row: int) -> npt.NDArray[np.int64]:
        """Returns the times of a chunked array in nanoseconds since 1970, `(n,)`.

        Args:
            column: Chunked array.
            where: String. The file, for messages.
            first_row: Integer. Number of the first row in the file, from 0.

        Raises:
            ValueError: If a row has no time, or one before 1824 or after 2262, where
                64 bits of nanoseconds end.
        """
        import pyarrow as pa

        unit = self.unit
        if pa.types.is_timestamp(column.type):
            unit, column = column.type.unit, column.cast(pa.int64())
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy()))
            raise ValueError(
                f"{where} {first_row + row + 1}, must have a time in column "
                f"'{self.name}'. Received: none. Leave such rows out."
            )
        times = column.to_numpy()
        scale = NANOSECONDS[unit]
        first, last = -(_MOST // scale), (2**63 - 1) // scale
        is_far = (times < first) | (times > last)
        if is_far.any():
            row = int(np.argmax(is_far))
            raise ValueError(
                f"{where} {first_row + row + 1}, must have a time in '{unit}' since "
                f"1970, of the years 1824 to 2262. Received: {times[row]}. Correct "
                "progressive.time_unit."
            )
        nanoseconds: npt.NDArray[np.int64] = times.astype(np.int64) * scale
        return nanoseconds

    def check_order(
        self,
        times: npt.NDArray[np.int64],
        where: str,
        first_row: int,
        last: int | None,
    ) -> None:
        """Raises ValueError, with its number, if a row lies before the one above it.

        Args:
            times: int64 array `(n,)`, of at least one row.
            where: String. The file, for messages.
            first_row: Integer. Number of the first row in the file, from 0.
            last: Integer. The time of the row above the first; `None`: there is none.
        """
        above = np.concatenate([times[:1] if last is None else [last], times[:-1]])
        is_early = times < above
        if is_early.any():
            row = int(np.argmax(is_early))
            early = (above[row] - times[row]) / NANOSECONDS["s"]
            raise ValueError(
                f"{where} {first_row + row + 1}, must not lie before the row above it "
                f"in time: a model would be tested on what it was trained on. "
                f"Received: '{self.name}' {early:g} seconds earlier. Sort the rows by "
                f"'{self.name}', and name the files in the order of time."
            )
