"""`convert` and `synthesize`: writes click logs as files of another format."""

import json
import os
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.data.arrow_columns import import_pyarrow
from tfctr.data.avazu import AVAZU_LINE
from tfctr.data.bad_lines import BadLines
from tfctr.data.criteo import CRITEO_LINE
from tfctr.data.data_files import find_files
from tfctr.data.part_writer import PartWriter
from tfctr.data.record_tables import record_tables
from tfctr.data.synthesis import SyntheticStream
from tfctr.data.table_sources import (
    Progress,
    line_table,
    line_tables,
    movielens_bytes,
    movielens_tables,
    parquet_tables,
)
from tfctr.data.table_writers import WRITERS

LINES = {"criteo": CRITEO_LINE, "avazu": AVAZU_LINE}
SOURCES = (*LINES, "parquet", "tfrecord", "movielens")
TARGETS = ("parquet", "tfrecord")
_SYNTHETIC_ROWS = 16_384
# What is known of a log that was drawn; readers pass over names with `_`.
FACTS = "_synthesis.json"


def source_bytes(source: str | os.PathLike[str], source_format: str) -> int:
    """Returns the bytes of all files of a log, as `convert` counts them.

    TFRecord files are read twice, and counted so.
    """
    if source_format == "movielens":
        return movielens_bytes(source)
    files = find_files(source, "a click log")
    num_bytes = sum(file.stat().st_size for file in files)
    return 2 * num_bytes if source_format == "tfrecord" else num_bytes


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
    million, they are rounded.

    Of TFRecord, a feature becomes a list where some example has more than one value of
    it, and otherwise a value or null; bytes become texts if they all are UTF-8. A
    feature without any value is left out. Columns are in the order of their names. Of
    MovieLens, the columns are those of the reader `MovieLens`, and `label`; its
    training split comes first, then its test split.

    Into TFRecord go integers, floats, booleans, texts and bytes, and lists of them.
    Floats become single precision, and uint64 from 2⁶³ on the int64 of the same bits.

    After an error, nothing that was written is left. What a killed process left in the
    target is removed, unless it was naming the files, which were whole by then.

    Args:
        source: String or path. A file, or a directory of files; of MovieLens, that of
            its three files.
        target: String or path. A directory, which must be empty or new.
        source_format: String. "criteo", "avazu", "parquet", "tfrecord" or "movielens".
        target_format: String. "parquet" or "tfrecord".
        on_bad_line: String. "raise" or "skip". The latter is for lines and records: the
            rows of Parquet files are written as they are.
        progress: Function. Called with bytes of the files that have been read since the
            last call. TFRecord files are read twice.

    Returns:
        A dict: `examples` written, `bad_lines` left out, and `files`.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If an argument is not known, the target is not empty, a Parquet file
            is damaged, of other columns than the first or of some that TFRecord cannot
            hold, at a bad line or record, or if there is no good one.
        OSError: If a file cannot be written to its end, as on a full disk.
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
    if source_format == "parquet" and on_bad_line == "skip":
        raise ValueError(
            "on_bad_line='skip' is for lines and records; Parquet files have none. "
            "Received: source_format='parquet'. Leave it out here, and tell the reader "
            "of what is written."
        )
    read, written = pathlib.Path(source).resolve(), pathlib.Path(target).resolve()
    if written in (read, read.parent):
        raise ValueError(
            "The target must be another directory than that of the source. Received: "
            f"source='{source}', target='{target}'. Name another."
        )
    with PartWriter(target, WRITERS[target_format]) as writer:
        if source_format == "parquet":
            tables = parquet_tables(source, target_format, progress)
        elif source_format == "tfrecord":
            tables = record_tables(source, bad_lines, progress)
        elif source_format == "movielens":
            tables = movielens_tables(source, bad_lines, progress)
        else:
            tables = line_tables(source, LINES[source_format], bad_lines, progress)
        for table in tables:
            writer.write(table)
        if writer.num_rows == 0:
            raise bad_lines.none_good(source, "example")
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
    with PartWriter(target, WRITERS[writes]) as writer:
        for clicks in stream.chunks(_SYNTHETIC_ROWS):
            start = writer.num_rows
            arrays = (clicks.labels, clicks.numbers, clicks.ids)
            writer.write(line_table(line, *arrays, start, stream))
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
