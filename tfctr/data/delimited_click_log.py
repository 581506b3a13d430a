"""`DelimitedClickLog`: click logs whose files are lines of numbers."""

import dataclasses
import os
import pathlib
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tfctr.data import text_blocks
from tfctr.data.bad_lines import BadLines
from tfctr.data.blocked_click_log import BlockedClickLog
from tfctr.data.columns import Examples
from tfctr.data.data_files import find_files
from tfctr.data.parts import Part
from tfctr.data.raw_table import RawTable
from tfctr.data.split import TestSplit
from tfctr.declaration import FeatureDeclaration

if TYPE_CHECKING:
    from tfctr_ops import ParsedText

_FIELDS = {
    "l": "a label, 0 or 1,",
    "n": "an integer or nothing",
    "d": "an integer of at most 18 digits, or nothing,",
    "h": "at most 16 hexadecimal digits, or nothing,",
}


@dataclasses.dataclass(frozen=True)
class LineFormat:
    """What the lines of a file hold.

    Args:
        name: String. Of the format, for messages.
        delimiter: String. The character between fields.
        names: Strings. The columns, in order.
        kinds: String. Their kinds, see `tfctr_ops.parse_delimited`.
        header: String. With what the first line begins, if that names the columns.
    """

    name: str
    delimiter: str
    names: tuple[str, ...]
    kinds: str
    header: str = ""

    def names_of(self, kinds: str) -> tuple[str, ...]:
        return tuple(
            name
            for name, kind in zip(self.names, self.kinds, strict=True)
            if kind in kinds
        )

    def expected(self, column: int, num_fields: int) -> str:
        """Says what a bad line should have held."""
        if column < 0:
            kind = "tabs" if self.delimiter == "\t" else "commas"
            return (
                f"{len(self.names)} fields with {kind} between them, and has "
                f"{num_fields}"
            )
        field = _FIELDS[self.kinds[column]]
        return f"{field} in field {column + 1}, '{self.names[column]}'"


@dataclasses.dataclass(frozen=True)
class _Block:
    text: text_blocks.TextBlock
    num_lines: int
    bad_lines: npt.NDArray[np.int64]  # Numbers of those that are left out.

    def __len__(self) -> int:
        return self.num_lines - len(self.bad_lines)


class DelimitedClickLog(BlockedClickLog[_Block]):
    """Reads lines of numbers; subclasses say which.

    Args:
        line_format: `LineFormat`.
        path: String or path.
        declared: `FeatureDeclaration`s.
        test: Float, string or path, or `RandomSplit`.
        on_bad_line: String.
        shuffle_rows: Integer.
    """

    def __init__(
        self,
        line_format: LineFormat,
        path: str | os.PathLike[str],
        declared: Sequence[FeatureDeclaration],
        test: TestSplit,
        on_bad_line: str,
        shuffle_rows: int,
    ) -> None:
        self._format = line_format
        _check_sources(line_format, declared)
        super().__init__(declared, path, test, on_bad_line, shuffle_rows)

    def _scan(self, path: str | os.PathLike[str]) -> list[_Block]:
        """Finds the blocks of all files, and parses them to know what each holds."""
        blocks = []
        for file in find_files(path, self._format.name):
            lines = 0
            try:
                for block, text in text_blocks.scan(file):
                    parsed = parse_block(
                        self._format, file, text, lines, self._bad_lines
                    )
                    bad = parsed.bad_lines.numpy()[:, 0]
                    found = _Block(block, len(parsed.labels) + len(bad), bad)
                    lines += found.num_lines
                    if len(found):
                        blocks.append(found)
            except text_blocks.TruncatedGzipError as error:
                self._bad_lines.add_truncated(file, lines + 1, error.line, error.reason)
        if not blocks:
            raise self._bad_lines.none_good(path, f"line of {self._format.name}")
        return blocks

    def _read_block(self, block: int) -> Examples:
        count = len(self._blocks[block])
        return self._read_parts([Part(block, 0, count, count)], slice(count))

    def _read_parts(
        self, parts: Sequence[Part], wanted: npt.NDArray[np.int64] | slice
    ) -> Examples:
        # Every line is parsed to its place in what is delivered: no row is moved.
        import tensorflow as tf

        from tfctr_ops import parse_delimited_to

        blocks = [self._blocks[part.block] for part in parts]
        row_of = np.full(sum(map(len, parts)), -1, np.int64)  # Of each example.
        row_of[wanted] = np.arange(len(row_of[wanted]))
        parsed = parse_delimited_to(
            # Their bytes, which are copied, are not held while they are parsed.
            tf.constant([_read(block.text) for block in blocks]),
            [block.num_lines for block in blocks],
            _places(parts, blocks, row_of),
            self._format.kinds,
            self._format.delimiter,
        )
        for block, is_as_told in zip(blocks, parsed.is_as_told.numpy(), strict=True):
            if not is_as_told:
                raise _changed(block.text.path)
        # Not `numpy()`, which copies.
        labels, numbers, ids = map(
            np.asarray, (parsed.labels, parsed.numbers, parsed.ids)
        )
        matrices = [
            (self._format.names_of("n"), numbers),
            (self._format.names_of("dh"), ids),
        ]
        return RawTable({}, labels, matrices).examples(self._declared)


def _places(
    parts: Sequence[Part], blocks: Sequence[_Block], row_of: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns the row of each line of the blocks; -1: none."""
    places = []
    first = 0
    for part, block in zip(parts, blocks, strict=True):
        rows = np.full(len(block), -1, np.int64)
        rows[part.rows()] = row_of[first : first + len(part)]
        first += len(part)
        if len(block.bad_lines):
            is_good = np.ones(block.num_lines, bool)
            is_good[block.bad_lines] = False
            of_good, rows = rows, np.full(block.num_lines, -1, np.int64)
            rows[is_good] = of_good
        places.append(rows)
    return np.concatenate(places)


def parse_block(
    line_format: LineFormat,
    path: pathlib.Path,
    text: bytes,
    first_line: int,
    bad_lines: BadLines,
) -> "ParsedText":
    """Parses a block of a file, and notes its bad lines.

    Args:
        line_format: `LineFormat`.
        path: `pathlib.Path`. The file.
        text: Bytes. The block.
        first_line: Integer. Lines of the file before it.
        bad_lines: `BadLines`.
    """
    from tfctr_ops import parse_delimited

    parsed = parse_delimited(text, line_format.kinds, line_format.delimiter)
    for line, begin, end, column, num_fields in parsed.bad_lines.numpy().tolist():
        content = text[begin:end].decode("utf-8", "backslashreplace")
        is_first = first_line + line == 0
        if is_first and line_format.header and content.startswith(line_format.header):
            continue
        expected = line_format.expected(column, num_fields)
        bad_lines.add(path, first_line + line + 1, content, expected)
    return parsed


def _read(text: text_blocks.TextBlock) -> bytes:
    try:
        return text.read()
    except (EOFError, zlib.error) as error:  # It was whole when it was scanned.
        raise _changed(text.path) from error


def _changed(path: pathlib.Path) -> ValueError:
    return ValueError(
        f"'{path}' must stay as it was when the log was opened. Received: other "
        "lines. Open the log anew."
    )


def _check_sources(
    line_format: LineFormat, declared: Sequence[FeatureDeclaration]
) -> None:
    known = line_format.names_of("ndh")
    for feature in declared:
        for source in feature.sources:
            if source not in known:
                raise ValueError(
                    f"A column of {line_format.name} must be one of "
                    f"{', '.join(known)}. Received: {source!r} for feature "
                    f"'{feature.name}'. Correct its `column`."
                )
        if feature.kind not in ("id", "dense"):
            raise ValueError(
                f"Features of {line_format.name} must be of kind 'id' or 'dense'. "
                f"Received: kind={feature.kind!r} for feature '{feature.name}'. "
                "Categories are integers there: use 'id'."
            )
