"""Blocks of whole lines of text files, plain or gzip, found again without a search."""

import abc
import codecs
import dataclasses
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

BLOCK_BYTES = 8 << 20
_READ_BYTES = 256 << 10
_GZIP = 31  # What zlib calls "a gzip header, and the largest window".


@dataclasses.dataclass(frozen=True)
class TextBlock(abc.ABC):
    """Some whole lines of a file.

    Args:
        path: `pathlib.Path`. The file.
        size: Integer. Bytes of the lines.
    """

    path: pathlib.Path
    size: int

    @property
    @abc.abstractmethod
    def file_end(self) -> int:
        """About where in the file, in bytes, it ends."""

    @abc.abstractmethod
    def read(self) -> bytes:
        """Reads the lines."""


@dataclasses.dataclass(frozen=True)
class PlainBlock(TextBlock):
    """Lines of a plain file.

    Args:
        start: Integer. Where they begin, in bytes.
    """

    start: int

    @property
    def file_end(self) -> int:
        return self.start + self.size

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


@dataclasses.dataclass(frozen=True)
class GzipBlock(TextBlock):
    """Lines of a gzip file.

    Args:
        offset: Integer. From where the file must be read.
        state: What decompresses from there; some 40 KB.
        skip: Integer. Bytes that come before the lines.
    """

    offset: int
    state: Any
    skip: int

    @property
    def file_end(self) -> int:
        return self.offset

    def read(self) -> bytes:
        parts: list[bytes] = []
        missing = self.skip + self.size
        for part, _, _ in _decompress(self.path, self.offset, self.state.copy()):
            parts.append(part)
            missing -= len(part)
            if missing <= 0:
                break
        return b"".join(parts)[self.skip : self.skip + self.size]


class TruncatedGzipError(Exception):
    """Raised where a gzip file is cut off or damaged, after its last whole block.

    Args:
        line: Bytes. What there is of the line amid which it happens.
        reason: String.
    """

    def __init__(self, line: bytes, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def scan(path: pathlib.Path) -> Iterator[tuple[TextBlock, bytes]]:
    """Yields the blocks of a file, and their text.

    Raises:
        TruncatedGzipError: At the end, if that is what the file is.
    """
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return (_scan_gzip if is_gzip else _scan_plain)(path)


def _scan_plain(path: pathlib.Path) -> Iterator[tuple[TextBlock, bytes]]:
    with path.open("rb") as file:
        parts = iter(lambda: file.read(BLOCK_BYTES), b"")
        for start, text in _whole_lines(parts):
            yield PlainBlock(path, len(text), start), text


def _scan_gzip(path: pathlib.Path) -> Iterator[tuple[TextBlock, bytes]]:
    # Where reading may begin: offset in the file, state, and offset in the text.
    entries: list[tuple[int, Any, int]] = []
    damage: list[zlib.error | EOFError] = []

    def parts() -> Iterator[bytes]:
        position = 0
        try:
            stream = _decompress(path, 0, zlib.decompressobj(_GZIP))
            for part, offset, state in stream:
                entries.append((offset, state, position))
                position += len(part)
                yield part
        except (zlib.error, EOFError) as error:
            damage.append(error)

    rest = b""
    for start, text in _whole_lines(parts()):
        if damage and not text.endswith(b"\n"):
            end = text.rfind(b"\n") + 1
            text, rest = text[:end], text[end:]
        while len(entries) > 1 and entries[1][2] <= start:
            del entries[0]
        if text:
            offset, state, position = entries[0]
            yield GzipBlock(path, len(text), offset, state, start - position), text
    if damage:
        raise TruncatedGzipError(rest, str(damage[0]))


def _decompress(
    path: pathlib.Path, offset: int, state: Any
) -> Iterator[tuple[bytes, int, Any]]:
    """Yields parts of the text, each with where it begins and the state before it."""
    with path.open("rb") as file:
        file.seek(offset)
        rest = b""
        while True:
            chunk = rest or file.read(_READ_BYTES)
            rest = b""
            if not chunk:
                if not state.eof:
                    raise EOFError("the file ends amid its compressed data")
                return
            if state.eof:  # Several gzip streams may stand in one file.
                if not chunk.strip(b"\0"):
                    offset += len(chunk)
                    continue
                state = zlib.decompressobj(_GZIP)
            before = state.copy()
            text = state.decompress(chunk)
            rest = state.unused_data
            if text:
                yield text, offset, before
            offset += len(chunk) - len(rest)


def _whole_lines(
    parts: Iterator[bytes],
) -> Iterator[tuple[int, bytes]]:
    """Yields texts of whole lines, and where they begin; the last may lack its end."""
    start = 0
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size < BLOCK_BYTES or b"\n" not in part:
            continue
        text = b"".join(held)
        end = text.rfind(b"\n") + 1
        yield _without_mark(start, text[:end])
        start += end
        held, size = [text[end:]], len(text) - end
    text = b"".join(held)
    if text:
        yield _without_mark(start, text)


def _without_mark(start: int, text: bytes) -> tuple[int, bytes]:
    """Leaves out the mark of UTF-8 that some programs begin a file with."""
    if start == 0 and text.startswith(codecs.BOM_UTF8):
        return len(codecs.BOM_UTF8), text.removeprefix(codecs.BOM_UTF8)
    return start, text
