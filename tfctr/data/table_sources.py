"""What `convert` reads, and `synthesize` draws, as pyarrow tables."""

import itertools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.data import text_blocks
from tfctr.data.avazu import AVAZU_LINE
from tfctr.data.bad_lines import BadLines
from tfctr.data.data_files import find_files
from tfctr.data.delimited_click_log import LineFormat, parse_block
from tfctr.data.epoch_order import SPLITS
from tfctr.data.example_columns import check_example_columns
from tfctr.data.movielens import FILES, MovieLens, find_directory
from tfctr.data.parquet import open_parquet, read_row_group
from tfctr.data.raw_table import MISSING_ID
from tfctr.data.synthesis import SyntheticStream
from tfctr.data.table_writers import GROUP_ROWS

# Told how much more of all is done.
Progress = Callable[[int], None]


def line_tables(
    source: str | os.PathLike[str],
    line: LineFormat,
    bad_lines: BadLines,
    progress: Progress,
) -> Iterator[Any]:
    """Yields the lines of a public log as pyarrow tables.

    Args:
        source: String or path. A file, or a directory of files.
        line: `LineFormat`.
        bad_lines: `BadLines`.
        progress: Function. Called with the bytes read since the last call.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: At a bad line.
    """
    for file in find_files(source, line.name):
        num_lines = done = 0
        total = file.stat().st_size
        try:
            for block, text in text_blocks.scan(file):
                parsed = parse_block(line, block.path, text, num_lines, bad_lines)
                num_lines += len(parsed.labels) + len(parsed.bad_lines)
                yield line_table(
                    line,
                    parsed.labels.numpy(),
                    parsed.numbers.numpy(),
                    parsed.ids.numpy(),
                )
                # Of compressed files, where in them the next block begins.
                reached = min(block.file_end, total)
                progress(reached - done)
                done = reached
        except text_blocks.TruncatedGzipError as error:
            bad_lines.add_truncated(file, num_lines + 1, error.line, error.reason)
        progress(total - done)
    bad_lines.report()


def parquet_tables(
    source: str | os.PathLike[str], target_format: str, progress: Progress
) -> Iterator[Any]:
    """Returns the row groups of Parquet files as pyarrow tables.

    Before it returns it compares the columns of all files with what the target can
    hold: Parquet files must be alike, a `tf.train.Example` takes no dates, and its
    features are of one kind in all files.

    Args:
        source: String or path. A file, or a directory of files.
        target_format: String. "parquet" or "tfrecord".
        progress: Function. Called with the bytes read since the last call.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If a file is damaged, or of other columns.
    """
    files = find_files(source, "Parquet")
    first = None
    kinds: dict[str, tuple[str, pathlib.Path]] = {}
    for file in files:
        with open_parquet(file) as opened:
            schema = opened.schema_arrow
        if target_format == "tfrecord":
            check_example_columns(file, schema, kinds)
        elif first is not None:
            _check_schema(file, schema, files[0], first)
        first = first or schema
    return _row_groups(files, progress)


def _row_groups(files: list[pathlib.Path], progress: Progress) -> Iterator[Any]:
    for file in files:
        size, done = file.stat().st_size, 0
        with open_parquet(file) as opened:
            num_groups = opened.num_row_groups
            for number in range(num_groups):
                yield read_row_group(file, opened, number)
                reached = size * (number + 1) // num_groups
                progress(reached - done)
                done = reached
        progress(size - done)


def movielens_tables(
    source: str | os.PathLike[str], bad_lines: BadLines, progress: Progress
) -> Iterator[Any]:
    """Returns the examples of `MovieLens` as pyarrow tables: training, then test.

    Args:
        source: String or path. The directory of the three files.
        bad_lines: `BadLines`. Told of what the reader left out.
        progress: Function. Called with the bytes read since the last call.

    Raises:
        FileNotFoundError: If one of the files is missing.
        ValueError: At a bad line, or if no rating is left.
    """
    log = MovieLens(source, on_bad_line=bad_lines.mode)
    bad_lines.count, bad_lines.first = log.bad_lines, log.first_bad_line
    return _batches(log, movielens_bytes(source), progress)


def movielens_bytes(source: str | os.PathLike[str]) -> int:
    """Returns the bytes of the three files of MovieLens."""
    directory = find_directory(source)
    return sum((directory / name).stat().st_size for name in FILES)


def _batches(log: MovieLens, num_bytes: int, progress: Progress) -> Iterator[Any]:
    import pyarrow as pa

    counts = {split: log.num_examples(split) for split in SPLITS}
    num_rows = done = 0
    for split in [split for split in SPLITS if counts[split]]:
        for inputs, labels in log.batches(split, GROUP_ROWS):
            columns = {"label": pa.array(labels.numpy().astype(np.int8))}
            for feature in log.features:
                kind = pa.string() if feature.dtype == "string" else pa.int64()
                value = inputs[feature.name]
                if feature.is_bag:
                    splits = pa.array(value.row_splits.numpy(), pa.int32())
                    values = pa.array(value.values.numpy(), kind)
                    column = pa.ListArray.from_arrays(splits, values)
                else:
                    column = pa.array(value.numpy(), kind)
                columns[feature.name] = column
            yield pa.table(columns)
            num_rows += len(labels)
            reached = num_bytes * num_rows // sum(counts.values())
            progress(reached - done)
            done = reached


def line_table(
    line: LineFormat,
    labels: npt.NDArray[Any],
    numbers: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    first_row: int = 0,
    stream: SyntheticStream | None = None,
) -> Any:
    """Returns a pyarrow table with a column for each field of a line."""
    import pyarrow as pa

    if stream is not None and line is AVAZU_LINE:
        index = np.arange(first_row, first_row + len(labels))
        # Ten days from 2014-10-21 on, as the log of the challenge has them.
        hours = index * 240 // stream.num_examples
        hour = 14102100 + hours // 24 * 100 + hours % 24
        ids = np.concatenate([hour[:, None], ids], axis=1)
    columns: dict[str, Any] = {}
    number_place = id_place = 0
    for name, kind in zip(line.names, line.kinds, strict=True):
        if kind == "l":
            columns[name] = pa.array(labels.astype(np.int8))
        elif kind == "n":
            values = numbers[:, number_place].astype(np.float64)
            # A drawn number is missing where it is -1.
            is_missing = np.isnan(values) if stream is None else values == -1
            whole = np.where(is_missing, 0, values).astype(np.int64)
            columns[name] = pa.array(whole, mask=is_missing)
            number_place += 1
        elif kind in "dh":
            values = np.ascontiguousarray(ids[:, id_place])
            columns[name] = pa.array(values, mask=values == MISSING_ID)
            id_place += 1
        elif name == "id" and stream is not None:
            index = np.arange(first_row, first_row + len(labels))
            columns[name] = pa.array(index)
    return pa.table(columns)


def _check_schema(
    file: pathlib.Path, schema: Any, first_file: pathlib.Path, first: Any
) -> None:
    for field, expected in itertools.zip_longest(schema, first):
        if not field or not expected or field != expected:
            raise ValueError(
                f"{file} must have the columns of {first_file}, in their order and "
                f"types. Received: {_shown(field)} in the place of {_shown(expected)}. "
                "Convert it by itself, or write it anew."
            )


def _shown(field: Any) -> str:
    if field is None:
        return "nothing"
    nullable = "" if field.nullable else " not null"
    return f"'{field.name}: {field.type}{nullable}'"
