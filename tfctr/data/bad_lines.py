"""`BadLines`: what becomes of the lines of a file that cannot be read."""

import dataclasses
import logging
import os
import pathlib

MODES = ("raise", "skip")
# A damaged binary file may be one line of gigabytes.
_SHOWN_CHARACTERS = 100


@dataclasses.dataclass(frozen=True)
class BadLine:
    """A line that does not hold what its file promises.

    Args:
        path: `pathlib.Path`. The file.
        number: Integer. Number of the line, from 1.
        content: String. The line, shortened if it is long.
        expected: String. What the line should have held.
        unit: String. What is counted: "line", or "row" or "record" of binary files.

    Example:

    >>> import pathlib
    >>> print(BadLine(pathlib.Path("users.dat"), 7, "x", "`UserID::...`"))
    users.dat, line 7, must hold `UserID::...`. Received: 'x'.
    """

    path: pathlib.Path
    number: int
    content: str
    expected: str
    unit: str = "line"

    def __str__(self) -> str:
        return (
            f"{self.path}, {self.unit} {self.number}, must hold {self.expected}. "
            f"Received: {self.content!r}."
        )


class BadLines:
    """Raises at the first bad line, or counts bad lines and keeps the first.

    Args:
        mode: String. "raise" or "skip".

    Raises:
        ValueError: If `mode` is neither.
    """

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(
                f"`on_bad_line` must be one of {', '.join(map(repr, MODES))}. "
                f"Received: on_bad_line={mode!r}. "
                "Use 'skip' to count bad lines and go on."
            )
        self.mode = mode
        self.count = 0
        self.first: BadLine | None = None

    def add(
        self,
        path: pathlib.Path,
        number: int,
        content: str,
        expected: str,
        unit: str = "line",
    ) -> None:
        """Takes note of a bad line.

        Raises:
            ValueError: If the mode is "raise".
        """
        if len(content) > _SHOWN_CHARACTERS:
            content = content[:_SHOWN_CHARACTERS] + "..."
        bad_line = BadLine(path, number, content, expected, unit)
        if self.mode == "raise":
            raise ValueError(
                f"{bad_line} Correct the {unit}, or leave such {unit}s out with "
                "on_bad_line='skip'."
            )
        self.count += 1
        self.first = self.first or bad_line

    def add_truncated(
        self, path: pathlib.Path, number: int, line: bytes, reason: str
    ) -> None:
        """Takes note of a gzip file that ends too early, amid `line`."""
        content = line.decode("utf-8", "backslashreplace")
        self.add(path, number, content, f"the rest of a whole gzip file ({reason})")

    def none_good(self, source: str | os.PathLike[str], expected: str) -> ValueError:
        """Returns the error of files without anything good.

        Args:
            source: String or path.
            expected: String. What there is none of, such as "row".
        """
        left = ""
        if self.first is not None:
            # Maybe of files that were read before.
            left = f" Left out so far: {self.count}, the first: {self.first}"
        return ValueError(
            f"'{source}' must hold at least one good {expected}. Received: none.{left} "
            "Check the path and its format."
        )

    def report(self) -> None:
        """Logs, once, how many lines were left out and which was the first."""
        if self.first is not None:
            logging.getLogger("tfctr").warning(
                "Left out %d bad %ss. The first: %s",
                self.count,
                self.first.unit,
                self.first,
            )
