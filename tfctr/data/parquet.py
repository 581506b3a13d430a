"""`ParquetLog`: Parquet files as a click log."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.data.arrow_columns import check_type, import_pyarrow, to_column
from tfctr.data.blocked_click_log import SHUFFLE_ROWS, BlockedClickLog
from tfctr.data.columns import Examples
from tfctr.data.data_files import find_files
from tfctr.data.raw_table import RawTable
from tfctr.data.split import TestSplit
from tfctr.declaration import FeatureDeclaration

_LABEL = "a label of 0 or 1"


@dataclasses.dataclass(frozen=True)
class _RowGroup:
    path: pathlib.Path
    metadata: Any
    number: int
    good_rows: npt.NDArray[np.int64] | None  # `None`: all of them.
    num_examples: int

    def __len__(self) -> int:
        return self.num_examples


class ParquetLog(BlockedClickLog[_RowGroup]):
    """Reads a directory of Parquet files, by pyarrow, which must be installed.

    It is not read by tensorflow-io, which gives no whole lists (its issues 1562, 1885).
    The features say which columns are read, and as what; list columns become bags.
    Empty fields are the id -1, the empty text, the feature's `missing`, or the empty
    list. Row groups are the blocks of the log, so they should hold some ten or hundred
    thousand rows. Only the footers and the labels are read when the log is opened. The
    files are read in the order of their names, and the last part of the rows, in
    this order, is the test split.

    Args:
        path: String or path. A file, or a directory of files.
        features: `FeatureDeclaration`s.
        label: String. The column of the labels: 0 and 1, or booleans.
        test: Float, string or path, or `RandomSplit`; see `Criteo`.
        on_bad_line: String. "raise" stops at a row whose label is neither 0 nor 1.
            "skip" leaves such rows out, counts them and logs the first.
        shuffle_rows: Integer. How many examples are shuffled together; see `Criteo`.

    Raises:
        ImportError: If pyarrow is not installed.
        FileNotFoundError: If there is no file.
        PermissionError: If a file may not be read.
        ValueError: If an argument is out of its range, a file is no Parquet file or
            lacks a column, at a bad row, or if no row is left.

    Example:

    >>> import pathlib, tempfile, pyarrow, pyarrow.parquet
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part-0.parquet"
    >>> table = pyarrow.table({"label": [0, 1], "items": [[3, 5], []]})
    >>> pyarrow.parquet.write_table(table, path)
    >>> log = ParquetLog(path, [FeatureDeclaration("items", kind="ids")])
    >>> next(iter(log.batches("train", batch_size=2)))[0]["items"]
    <tf.RaggedTensor [[3, 5], []]>
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        features: Sequence[FeatureDeclaration],
        label: str = "label",
        test: TestSplit = 0.1,
        on_bad_line: str = "raise",
        shuffle_rows: int = SHUFFLE_ROWS,
    ) -> None:
        import_pyarrow()
        self._label = label
        super().__init__(features, path, test, on_bad_line, shuffle_rows)

    def _scan(self, path: str | os.PathLike[str]) -> list[_RowGroup]:
        groups: list[_RowGroup] = []
        for file in find_files(path, "Parquet"):
            parquet = open_parquet(file)
            check_columns(
                file,
                parquet.schema_arrow,
                [(self._label, "label", "the label"), *columns_of(self._declared)],
            )
            first_row = 0
            for number in range(parquet.num_row_groups):
                table = read_row_group(file, parquet, number, [self._label])
                labels = table[self._label]
                good = self._good_rows(file, labels, first_row)
                first_row += len(labels)
                count = len(labels) if good is None else len(good)
                if count:
                    group = _RowGroup(file, parquet.metadata, number, good, count)
                    groups.append(group)
        if not groups:
            raise self._bad_lines.none_good(path, "row")
        return groups

    def _good_rows(
        self, file: pathlib.Path, labels: Any, first_row: int
    ) -> npt.NDArray[np.int64] | None:
        values = read_labels(labels)
        is_good = (values == 0) | (values == 1)
        if is_good.all():
            return None
        for row in np.flatnonzero(~is_good).tolist():
            content = str(labels[row].as_py())
            self._bad_lines.add(file, first_row + row + 1, content, _LABEL, "row")
        return np.flatnonzero(is_good)

    def _read_block(self, block: int) -> Examples:
        from pyarrow import parquet

        group = self._blocks[block]
        names = {source for feature in self._declared for source in feature.sources}
        numbers = numbers_of(self._declared)
        with parquet.ParquetFile(group.path, metadata=group.metadata) as file:
            columns = [*sorted(names), self._label]
            table = read_row_group(group.path, file, group.number, columns)
        raw = RawTable(
            {name: to_column(table[name], name in numbers) for name in names},
            read_labels(table[self._label]).astype(np.float32),
        )
        examples = raw.examples(self._declared)
        return examples if group.good_rows is None else examples.take(group.good_rows)


def numbers_of(declared: Sequence[FeatureDeclaration]) -> set[str]:
    """Returns the columns that some feature takes for numbers."""
    return {
        source
        for feature in declared
        if feature.kind == "dense" or feature.transform == "bucketize"
        for source in feature.sources
    }


def columns_of(
    declared: Sequence[FeatureDeclaration],
) -> list[tuple[str, str, str]]:
    """Returns, of each column that features are made of: name, kind, and whose."""
    wanted = []
    for feature in declared:
        kind = "dense" if feature.transform == "bucketize" else feature.kind
        named = f"feature '{feature.name}'"
        wanted += [(source, kind, named) for source in feature.sources]
    return wanted


def check_columns(
    file: pathlib.Path, schema: Any, wanted: Sequence[tuple[str, str, str]]
) -> None:
    """Raises ValueError unless a file has columns, each of a kind; see `columns_of`.

    The kind "any" fits every type.
    """
    for column, kind, named in wanted:
        if column not in schema.names:
            raise ValueError(
                f"{file} must have a column '{column}', of {named}. Received: a "
                f"file with the columns {', '.join(schema.names)}. Correct the "
                "name, or write the column into every file."
            )
        if (number := schema.names.count(column)) > 1:
            raise ValueError(
                f"{file} must have one column '{column}', of {named}. Received: a file "
                f"with {number} columns of that name. Write it anew, with a name for "
                "each."
            )
        if kind != "any":
            check_type(schema.field(column).type, kind, f"{file}, column '{column}',")


def read_labels(column: Any) -> npt.NDArray[Any]:
    """Returns the numbers of a column; NaN where there is none."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return np.asarray(column.to_numpy(), np.float64)


def open_parquet(file: pathlib.Path) -> Any:
    """Returns a `pyarrow.parquet.ParquetFile`; raises ValueError if it is none."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(file, error) from error


def read_row_group(
    file: pathlib.Path, opened: Any, number: int, columns: list[str] | None = None
) -> Any:
    """Returns columns of a row group, or all, as a pyarrow table.

    Args:
        file: `pathlib.Path`. For messages.
        opened: What `open_parquet` gave.
        number: Integer. Of the row group, from 0.
        columns: Strings. `None`: all.

    Raises:
        ValueError: If the row group is damaged.
    """
    import pyarrow as pa

    try:
        return opened.read_row_group(number, columns)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(f"{file}, row group {number + 1},", error) from error


def read_batches(
    file: pathlib.Path, opened: Any, rows: int, columns: list[str]
) -> Iterator[Any]:
    """Yields columns of all rows as pyarrow tables of at most `rows` rows.

    Args:
        file: `pathlib.Path`. For messages.
        opened: What `open_parquet` gave.
        rows: Integer.
        columns: Strings.

    Raises:
        ValueError: If the file is damaged.
    """
    import pyarrow as pa

    try:
        for batch in opened.iter_batches(rows, columns=columns):
            yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from error


def _damaged(where: pathlib.Path | str, error: Exception) -> ValueError:
    reason = " ".join(str(error).split()).rstrip(".")  # Of several lines.
    return ValueError(
        f"{where} must be of a whole Parquet file. Received: {reason}. Write it again, "
        "or move it out of the directory."
    )
