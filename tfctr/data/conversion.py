"""`convert` and `synthesize`: writes click logs as files of another format."""

import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.data import text_blocks
from tfctr.data.arrow_columns import import_pyarrow
from tfctr.data.avazu import AVAZU_LINE
from tfctr.data.bad_lines import BadLines
from tfctr.data.criteo import CRITEO_LINE
from tfctr.data.data_files import find_files
from tfctr.data.delimited_click_log import LineFormat, parse_block
from tfctr.data.parquet import open_parquet, read_row_group
from tfctr.data.raw_table import MISSING_ID
from tfctr.data.synthesis import SyntheticStream
from tfctr.data.table_writers import WRITERS, PartWriter

LINES = {"criteo": CRITEO_LINE, "avazu": AVAZU_LINE}
SOURCES = (*LINES, "parquet")
TARGETS = ("parquet", "tfrecord")
_SYNTHETIC_ROWS = 16_384
# What is known of a log that was drawn; readers pass over names with `_`.
FACTS = "_synthesis.json"

# Told how much more of all is done.
Progress = Callable[[int], None]


def source_bytes(source: str | os.PathLike[str]) -> int:
    """Returns the bytes of all files of a log, as `convert` counts them."""
    files = find_files(source, "a click log")
    return sum(file.stat().st_size for file in files)


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    source_format: str,
    target_format: str,
    on_bad_line: str = "raise",
    progress: Progress = lambda done: None,
) -> dict[str, int]:
    """Writes the examples of a log as Parquet or TFRecord files, in their order.

    Columns keep their names; those of Criteo are `label`, `I1` to `I13` and `C1` to
    `C26`, categories as integers. Avazu's `id`, a number of 20 digits for each line, is
    left out. Empty fields become nulls in Parquet, and are left out of a
    `tf.train.Example`. Integers of Criteo pass through float32: beyond 2²⁴, some 17
    million, they are rounded. After an error, nothing that was written is left.

    Args:
        source: String or path. A file, or a directory of files.
        target: String or path. A directory, which must be empty or new.
        source_format: String. "criteo", "avazu" or "parquet".
        target_format: String. "parquet" or "tfrecord".
        on_bad_line: String. "raise" or "skip". The latter is for lines: the rows of
            Parquet files are written as they are.
        progress: Function. Called with bytes of the files that have been read since the
            last call.

    Returns:
        A dict: `examples` written, `bad_lines` left out, and `files`.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If an argument is not known, the target is not empty, a Parquet file
            is damaged or of other columns than the first, or at a bad line.
        ImportError: If pyarrow is not installed.

    Example:

    >>> import pathlib, tempfile
    >>> place = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (place / "day_0").write_text("1" + "\\t" * 39 + "\\n")
    >>> convert(place / "day_0", place / "parquet", "criteo", "parquet")
    {'examples': 1, 'bad_lines': 0, 'files': 1}
    """
    import_pyarrow()
    _check_format("source_format", source_format, SOURCES)
    _check_format("target_format", target_format, TARGETS)
    bad_lines = BadLines(on_bad_line)
    if source_format == "parquet":
        if on_bad_line == "skip":
            raise ValueError(
                "on_bad_line='skip' is for lines; Parquet files have none. Received: "
                "source_format='parquet'. Leave it out here, and tell the reader of "
                "what is written."
            )
        tables = _parquet_tables(source, target_format == "parquet", progress)
    else:
        tables = _line_tables(source, LINES[source_format], bad_lines, progress)
    with PartWriter(_new_directory(target), WRITERS[target_format]) as writer:
        for table in tables:
            writer.write(table)
    bad_lines.report()
    return {
        "examples": writer.num_rows,
        "bad_lines": bad_lines.count,
        "files": writer.num_files,
    }


def synthesize(
    stream: SyntheticStream,
    target: str | os.PathLike[str],
    target_format: str,
    progress: Progress = lambda done: None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Writes a drawn log, as TSV (CSV in the shape of Avazu), Parquet or TFRecord.

    Args:
        stream: `SyntheticStream`.
        target: String or path. A directory, which must be empty or new.
        target_format: String. "tsv", "parquet" or "tfrecord".
        progress: Function. Called with the examples written since the last call.

    Returns:
        Labels and true probabilities of the last tenth, which readers take for their
        test split: no model can rank it better.

    Raises:
        ValueError: If the format is not known, or the target is not empty.
        ImportError: If pyarrow is not installed.

    Example:

    >>> import tempfile
    >>> stream = SyntheticStream(100, max_ids=10)
    >>> labels, probabilities = synthesize(stream, tempfile.mkdtemp(), "tsv")
    >>> len(labels)
    10
    """
    import_pyarrow()
    _check_format("target_format", target_format, ("tsv", *TARGETS))
    line = LINES[stream.shape]
    writes = line.name if target_format == "tsv" else target_format
    first_test = stream.num_examples - stream.num_examples // 10
    labels, probabilities = [], []
    with PartWriter(_new_directory(target), WRITERS[writes]) as writer:
        for clicks in stream.chunks(_SYNTHETIC_ROWS):
            start = writer.num_rows
            arrays = (clicks.labels, clicks.numbers, clicks.ids)
            writer.write(_table(line, *arrays, start, stream))
            is_test = np.arange(start, writer.num_rows) >= first_test
            labels.append(clicks.labels[is_test])
            probabilities.append(clicks.probabilities[is_test])
            progress(len(clicks))
    return np.concatenate(labels), np.concatenate(probabilities)


def write_facts(target: str | os.PathLike[str], facts: dict[str, Any]) -> None:
    """Writes what is known of a drawn log beside its files."""
    path = pathlib.Path(target) / FACTS
    path.write_text(json.dumps(facts, indent=2) + "\n")


def _check_format(argument: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(map(repr, known))}. "
            f"Received: {argument}={value!r}."
        )


def _new_directory(target: str | os.PathLike[str]) -> pathlib.Path:
    directory = pathlib.Path(target)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(
            "The target must be a new directory, or an empty one. "
            f"Received: '{directory}', which holds something. Name another."
        )
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _line_tables(
    source: str | os.PathLike[str],
    line: LineFormat,
    bad_lines: BadLines,
    progress: Progress,
) -> Iterator[Any]:
    for file in find_files(source, line.name):
        num_lines = done = 0
        total = file.stat().st_size
        try:
            for block, text in text_blocks.scan(file):
                parsed = parse_block(line, block.path, text, num_lines, bad_lines)
                num_lines += len(parsed.labels) + len(parsed.bad_lines)
                yield _table(
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


def _parquet_tables(
    source: str | os.PathLike[str], has_schema: bool, progress: Progress
) -> Iterator[Any]:
    """Yields row groups; with `has_schema`, all must be of the same columns."""
    files = find_files(source, "Parquet")
    with open_parquet(files[0]) as opened:
        first = opened.schema_arrow
    for file in files:
        with open_parquet(file) as opened:
            if has_schema:
                _check_schema(file, opened.schema_arrow, files[0], first)
            for number in range(opened.num_row_groups):
                yield read_row_group(file, opened, number)
        progress(file.stat().st_size)


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


def _table(
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
