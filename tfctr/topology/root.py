"""The files that Linux shows, under any root directory."""

import os
import pathlib
from collections.abc import Callable
from typing import TypeVar

from tfctr.topology import cpu_mask

Value = TypeVar("Value")


class Root:
    """Reads small files below a directory. What is missing or odd reads as `None`.

    Paths are relative to the root, with or without a slash before them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)

    def text(self, path: str) -> str | None:
        try:
            return self._at(path).read_text(errors="replace").strip("\n\0 ")
        except OSError:
            # Some files of a device can be listed and not be read.
            return None

    def integer(self, path: str, base: int = 10) -> int | None:
        return self._parsed(path, lambda text: int(text, base))

    def mask(self, path: str) -> int | None:
        return self._parsed(path, cpu_mask.from_hex)

    def cpu_list(self, path: str) -> int | None:
        return self._parsed(path, cpu_mask.from_list)

    def names(self, path: str) -> list[str]:
        """The sorted names in a directory; none where it is missing."""
        try:
            return sorted(os.listdir(self._at(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(self._at(path))
        except OSError:
            return None

    def total_memory(self, path: str) -> int:
        """The bytes of the `MemTotal` line of a meminfo file, 0 without one."""
        _, _, rest = (self.text(path) or "").partition("MemTotal:")
        number = rest.split(maxsplit=1)[0] if rest.split() else ""
        return int(number) << 10 if number.isdigit() else 0

    def _at(self, path: str) -> pathlib.Path:
        return self.path / path.lstrip("/")

    def _parsed(self, path: str, parse: Callable[[str], Value]) -> Value | None:
        text = self.text(path)
        try:
            return None if text is None else parse(text)
        except ValueError:
            return None
