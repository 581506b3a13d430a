"""`TimedLog`: Parquet files in the order of time, window by window."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.data.arrow_columns import import_pyarrow, to_column
from tfctr.data.bad_lines import BadLine, BadLines
from tfctr.data.columns import Array, Examples, concatenate
from tfctr.data.data_files import find_files
from tfctr.data.negative_sampler import NegativeSampler, NegativeSampling
from tfctr.data.parquet import (
    check_columns,
    columns_of,
    numbers_of,
    open_parquet,
    read_batches,
    read_labels,
)
from tfctr.data.raw_table import RawTable
from tfctr.data.time_column import TimeColumn, to_span
from tfctr.data.window_log import WindowLog
from tfctr.declaration import FeatureDeclaration

# Rows that are read at once; a row group may be far larger than a window.
_READ_ROWS = 65_536
_LABEL = "a label of 0 or 1, as long as progressive.negatives is not set"


@dataclasses.dataclass(frozen=True)
class TimeWindow:
    """The rows of a log that lie in one span of time, and the examples made of them.

    Attributes:
        start: Integer. Where the span begins, in nanoseconds since 1970.
        num_rows: Integer. Rows of the files.
        log: `ClickLog` of all examples, in its split "train".
        tested: `ClickLog` of those by which a model can be judged, in "train".
        times: int64 array `(n,)`. Of each example, in nanoseconds since 1970.
        items: Array `(n,)`. Of each example; empty without a column of items.
        labels: float32 array `(n,)`.
        is_tested: Boolean array `(n,)`. Which examples `tested` holds.

    Example:

    >>> import pathlib, tempfile, pyarrow, pyarrow.parquet
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "clicks.parquet"
    >>> columns = {"time": [5, 6], "ad": [7, 8], "label": [0, 1]}
    >>> pyarrow.parquet.write_table(pyarrow.table(columns), path)
    >>> log = TimedLog(path, [FeatureDeclaration("ad")], TimeColumn("time"))
    >>> window = next(log.windows(seconds=4))
    >>> window.start, window.labels.tolist()
    (4000000000, [0.0, 1.0])
    """

    start: int
    num_rows: int
    log: WindowLog
    tested: WindowLog
    times: npt.NDArray[np.int64]
    items: Array
    labels: npt.NDArray[np.float32]
    is_tested: npt.NDArray[np.bool_]


class TimedLog:
    """Reads Parquet files whose rows are in the order of time, by windows of time.

    Rows are held a window at a time, besides a piece that is being cut. The files are
    read in the order of their names. With `negatives`, every row is a click, and
    non-clicks are drawn: see `NegativeSampling`.

    Args:
        path: String or path. A file, or a directory of files.
        features: `FeatureDeclaration`s; see `ParquetLog`.
        time: `TimeColumn`.
        label: String. The column of the labels: 0 and 1, or booleans. Not read with
            `negatives`.
        item: String. The column of what is clicked, of a feature of kind "id" or
            "string". Empty: there is none.
        negatives: `NegativeSampling`. `None`: the files hold the non-clicks too.
        on_bad_line: String. "raise" stops at a row whose label is neither 0 nor 1.
            "skip" leaves such rows out, counts them and logs the first; at least one
            row must be left.

    Raises:
        ImportError: If pyarrow is not installed.
        FileNotFoundError: If there is no file.
        PermissionError: If a file may not be read.
        ValueError: If a file is no Parquet file or lacks a column, `item` belongs to no
            such feature, there are `negatives` without an `item`, `on_bad_line` is
            neither, or there is no row.

    Example: two windows of an hour each.

    >>> import pathlib, tempfile, pyarrow, pyarrow.parquet
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "clicks.parquet"
    >>> columns = {"time": [0, 1800, 3600], "ad": [7, 8, 7], "label": [0, 1, 1]}
    >>> table = pyarrow.table(columns)
    >>> pyarrow.parquet.write_table(table, path)
    >>> log = TimedLog(path, [FeatureDeclaration("ad")], TimeColumn("time"))
    >>> [window.num_rows for window in log.windows(seconds=3600)]
    [2, 1]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        features: Sequence[FeatureDeclaration],
        time: TimeColumn,
        label: str = "label",
        item: str = "",
        negatives: NegativeSampling | None = None,
        on_bad_line: str = "raise",
    ) -> None:
        import_pyarrow()
        self._path = path
        self._bad_lines = BadLines(on_bad_line)
        self._declared = tuple(features)
        self.features = tuple(feature.feature for feature in self._declared)
        self.time = time
        self.item = item
        self.negatives = negatives
        self._label = "" if negatives else label
        self._check_item()
        self._files = find_files(path, "Parquet")
        num_rows = 0
        for file in self._files:
            with open_parquet(file) as parquet:
                self._check_file(file, parquet.schema_arrow)
                num_rows += parquet.metadata.num_rows
        if num_rows == 0:
            raise ValueError(
                f"'{path}' must hold at least one row. Received: none. Check the path."
            )

    @property
    def bad_lines(self) -> int:
        """How many rows were left out when the log was last gone through."""
        return self._bad_lines.count

    @property
    def first_bad_line(self) -> BadLine | None:
        """The first row that was left out then; `None` if none was."""
        return self._bad_lines.first

    def windows(self, seconds: float) -> Iterator[TimeWindow]:
        """Yields the windows in order; those without any row are left out.

        A window begins at a multiple of `seconds` since 1970 and holds the rows from
        there on up to, and without, its end. Each row of the files is in one window.

        Args:
            seconds: Float. The length of a window, 146 years at most.

        Raises:
            ValueError: If `seconds` is out of range, a row lies before the one above it
                or has no time, a label is neither 0 nor 1, or a file is damaged.
        """
        span = to_span(seconds, "seconds")
        sampler = NegativeSampler(self.negatives) if self.negatives else None
        self._bad_lines = BadLines(self._bad_lines.mode)
        window = None
        for rows in _cut(_good(self._pieces()), span):
            window = self._window(rows, int(rows.times[0] // span * span), sampler)
            yield window
        if window is None:
            raise self._bad_lines.none_good(self._path, "row")
        self._bad_lines.report()

    def _window(
        self, rows: "_Rows", start: int, sampler: NegativeSampler | None
    ) -> TimeWindow:
        num_rows = len(rows)
        items: Any = np.zeros(0, np.int64)
        if self.item:
            items = rows.columns.inputs[self.item]
        labels = rows.columns.labels
        is_tested = np.ones(num_rows, bool)
        if sampler is not None:
            drawn = sampler.draw(rows.times, items)
            rows, items = rows.take(drawn.rows), drawn.items
            labels, is_tested = drawn.labels, drawn.is_tested
        columns = {**rows.columns.inputs, **({self.item: items} if self.item else {})}
        examples = RawTable(columns, labels).examples(self._declared)
        tested = examples.take(np.flatnonzero(is_tested))
        return TimeWindow(
            start,
            num_rows,
            WindowLog(self.features, examples),
            WindowLog(self.features, tested),
            rows.times,
            items,
            labels,
            is_tested,
        )

    def _pieces(self) -> Iterator["_Rows"]:
        last: int | None = None
        for file in self._files:
            first_row = 0
            with open_parquet(file) as parquet:
                columns = self._columns()
                for table in read_batches(file, parquet, _READ_ROWS, columns):
                    if table.num_rows == 0:
                        continue
                    rows = self._read(file, table, first_row, last)
                    last = int(rows.times[-1])
                    first_row += len(rows)
                    yield rows

    def _read(
        self, file: pathlib.Path, table: Any, first_row: int, last: int | None
    ) -> "_Rows":
        where = f"{file}, row"
        times = self.time.read(table[self.time.name], where, first_row)
        self.time.check_order(times, where, first_row, last)
        if self._label:
            values = read_labels(table[self._label])
            is_bad = (values != 0) & (values != 1)
            for row in np.flatnonzero(is_bad).tolist():
                content = str(table[self._label][row].as_py())
                self._bad_lines.add(file, first_row + row + 1, content, _LABEL, "row")
            values = np.where(is_bad, np.nan, values)
        else:
            values = np.ones(len(times))
        names = set(self._columns()) - {self.time.name, self._label} | self._sources()
        numbers = numbers_of(self._declared)
        columns = {name: to_column(table[name], name in numbers) for name in names}
        return _Rows(times, Examples(columns, values.astype(np.float32)))

    def _sources(self) -> set[str]:
        return {source for feature in self._declared for source in feature.sources}

    def _columns(self) -> list[str]:
        named = {self.time.name, self._label} - {""}
        return sorted(named | self._sources())

    def _check_item(self) -> None:
        if not self.item and self.negatives is None:
            return
        kinds = {"id", "string"}
        of_item = [
            feature
            for feature in self._declared
            if self.item in feature.sources and feature.kind in kinds
        ]
        if not of_item:
            raise ValueError(
                "`item`, of which negatives are drawn, must be the column of a feature "
                f"of kind 'id' or 'string'. Received: item={self.item!r}. Set "
                "progressive.item, and add an entry [[features]] of that column."
            )

    def _check_file(self, file: pathlib.Path, schema: Any) -> None:
        wanted = [(self.time.name, "any", "the time")]
        if self._label:
            wanted.append((self._label, "label", "the label"))
        check_columns(file, schema, [*wanted, *columns_of(self._declared)])
        self.time.check_type(schema.field(self.time.name).type, file)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows of the files: times `(n,)`, and the columns as `RawTable` holds them.

    The label of a bad row is NaN.
    """

    times: npt.NDArray[np.int64]
    columns: Examples

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, rows: slice) -> "_Rows":
        return _Rows(self.times[rows], self.columns[rows])

    def take(self, rows: npt.NDArray[np.int64]) -> "_Rows":
        return _Rows(self.times[rows], self.columns.take(rows))


def _good(pieces: Iterator[_Rows]) -> Iterator[_Rows]:
    """Yields the pieces without their bad rows; those of nothing else are left out."""
    for piece in pieces:
        is_good = ~np.isnan(piece.columns.labels)
        if is_good.all():
            yield piece
        elif is_good.any():
            yield piece.take(np.flatnonzero(is_good))


def _cut(pieces: Iterator[_Rows], span: int) -> Iterator[_Rows]:
    """Yields the rows of each span of time; those of a span may lie in many pieces."""
    rest: list[_Rows] = []
    for piece in pieces:
        numbers = piece.times // span
        if rest and rest[-1].times[-1] // span != numbers[0]:
            yield _join(rest)
            rest = []
        ends = np.flatnonzero(np.diff(numbers)) + 1
        borders = [0, *ends.tolist(), len(piece)]
        for start, stop in itertools.pairwise(borders):
            rest.append(piece[start:stop])
            if stop < len(piece):
                yield _join(rest)
                rest = []
    if rest:
        yield _join(rest)


def _join(parts: Sequence[_Rows]) -> _Rows:
    times = np.concatenate([part.times for part in parts])
    return _Rows(times, concatenate([part.columns for part in parts]))
