"""`record_tables`: TFRecord files of any `tf.train.Example` as pyarrow tables."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfctr.data.bad_lines import BadLines
from tfctr.data.data_files import find_files
from tfctr.data.record_files import (
    bytes_of,
    kinds_of,
    read_records,
    shown,
)

_BLOCK_RECORDS = 4_096
_EXAMPLE = "a `tf.train.Example`"


@dataclasses.dataclass
class _Column:
    """What is known of a feature.

    Args:
        kind: String. The field of `tf.train.Feature` that its values are in.
        place: String. Where it was seen first.
        is_list: Boolean. Whether some example has more than one value.
        is_text: Boolean. Whether all values are UTF-8.
    """

    kind: str
    place: str
    is_list: bool = False
    is_text: bool = True

    def learn(self, values: Any) -> None:
        """Takes note of its values in some examples, a `RaggedTensor`."""
        lengths = values.row_lengths().numpy()
        self.is_list = self.is_list or bool((lengths > 1).any())
        if self.kind == "bytes_list" and self.is_text:
            try:
                # A byte of ASCII ends what is no whole character.
                b" ".join(values.values.numpy().tolist()).decode()
            except UnicodeDecodeError:
                self.is_text = False

    def to_arrow(self, values: Any) -> Any:
        """Returns its values in some examples, a `RaggedTensor`, as a pyarrow array."""
        import pyarrow as pa

        kind = {"int64_list": pa.int64(), "float_list": pa.float32()}.get(
            self.kind, pa.string() if self.is_text else pa.binary()
        )
        array = pa.array(values.values.numpy(), kind)
        splits = values.row_splits.numpy()
        if self.is_list:
            return pa.ListArray.from_arrays(pa.array(splits, pa.int32()), array)
        is_missing = splits[1:] == splits[:-1]
        return array.take(pa.array(splits[:-1], mask=is_missing))


def record_tables(
    source: str | os.PathLike[str],
    bad_lines: BadLines,
    progress: Callable[[int], None],
) -> Iterator[Any]:
    """Returns the examples of TFRecord files as pyarrow tables of the same columns.

    All records are read twice: first to know the features. One that has more than one
    value in some example becomes a list, all others a value or null. Bytes become
    texts if they all are UTF-8.

    Args:
        source: String or path. A file, or a directory of files.
        bad_lines: `BadLines`. Told of records that are no example or damaged, or have a
            feature of another kind than the first record with it.
        progress: Function. Called with the bytes read since the last call.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If a file is compressed, at a bad record, if no record is left, or
            if a file changes meanwhile.
    """
    files = find_files(source, "TFRecord")
    states = [_state(file) for file in files]
    columns: dict[str, _Column] = {}
    for parsed in _parsed(files, columns, bad_lines, progress):
        for name, values in parsed.items():
            columns[name].learn(values)
    if not columns:
        raise bad_lines.none_good(source, "record with a feature")
    bad_lines.report()

    def tables() -> Iterator[Any]:
        import pyarrow as pa

        # Records that were bad are bad again; without any, none is looked at.
        again = BadLines(bad_lines.mode) if bad_lines.count else None
        _check_states(files, states)
        try:
            for parsed in _parsed(files, columns, again, progress):
                arrays = {name: columns[name].to_arrow(parsed[name]) for name in parsed}
                yield pa.table(arrays)
        except Exception:
            # The records were good in the first pass, unless a file has changed since.
            _check_states(files, states)
            raise
        _check_states(files, states)

    return tables()


def _parsed(
    files: list[pathlib.Path],
    columns: dict[str, _Column],
    bad_lines: BadLines | None,
    progress: Callable[[int], None],
) -> Iterator[dict[str, Any]]:
    """Yields the good records as a `RaggedTensor` for each column.

    With `bad_lines`, it learns of columns. Without, they are known and all records are
    good.
    """
    for file in files:
        done = first_record = 0
        noted = bad_lines or BadLines("raise")
        for records in read_records(file, noted, _BLOCK_RECORDS):
            if bad_lines is None:
                parsed = _parse(records, columns)
            else:
                parsed = _checked(file, records, first_record, columns, bad_lines)
            if parsed:
                yield parsed
            first_record += len(records)
            num_bytes = bytes_of(records)
            done += num_bytes
            progress(num_bytes)
        progress(file.stat().st_size - done)


def _checked(
    file: pathlib.Path,
    records: list[bytes],
    first_record: int,
    columns: dict[str, _Column],
    bad_lines: BadLines,
) -> dict[str, Any]:
    """Returns the good records parsed, and notes the bad ones and new columns."""
    import tensorflow as tf

    try:
        parsed, found, faults = _sorted_out(file, records, first_record, columns)
    # What Python takes for an example may be none to TensorFlow, whose message quotes
    # the record, which may be no text. Which of them it is, only single records tell.
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        parsed, found, faults = _sorted_out(file, records, first_record, columns, True)
    columns.update(found)
    for number, (content, expected) in faults.items():
        bad_lines.add(file, number, content, expected, "record")
    return parsed


def _sorted_out(
    file: pathlib.Path,
    records: list[bytes],
    first_record: int,
    columns: dict[str, _Column],
    one_by_one: bool = False,
) -> tuple[dict[str, Any], dict[str, _Column], dict[int, tuple[str, str]]]:
    """Returns the good records parsed, the columns now, and the faults by number."""
    columns = dict(columns)
    good: list[bytes] = []
    faults = {}
    for number, record in enumerate(records, first_record + 1):
        new, fault = _new_columns(record, columns, f"{file}, record {number}")
        if one_by_one and not fault and not _can_parse(record, {**columns, **new}):
            fault = shown(record), _EXAMPLE
        if fault:
            faults[number] = fault
        else:
            good.append(record)
            columns.update(new)
    return (_parse(good, columns) if good else {}), columns, faults


def _new_columns(
    record: bytes, columns: dict[str, _Column], place: str
) -> tuple[dict[str, _Column], tuple[str, str] | None]:
    """Returns the columns that a record has first, and what it holds and should."""
    kinds = kinds_of(record)
    if kinds is None:
        return {}, (shown(record), _EXAMPLE)
    new = {}
    for name, kind in sorted(kinds.items()):
        known = columns.get(name)
        # A feature may lack a kind; it has no value then.
        if kind and known is None:
            new[name] = _Column(kind, place)
        elif kind and known is not None and kind != known.kind:
            expected = f"the feature '{name}' as `{known.kind}`, like {known.place}"
            return {}, (kind, expected)
    return new, None


def _can_parse(record: bytes, columns: dict[str, _Column]) -> bool:
    import tensorflow as tf

    try:
        _parse([record], columns)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        return False
    return True


def _parse(records: list[bytes], columns: dict[str, _Column]) -> dict[str, Any]:
    import tensorflow as tf

    if not columns:
        return {}
    kinds = {"int64_list": tf.int64, "float_list": tf.float32, "bytes_list": tf.string}
    spec = {
        name: tf.io.RaggedFeature(kinds[columns[name].kind], row_splits_dtype=tf.int64)
        for name in sorted(columns)
    }
    with tf.device("CPU:0"):
        parsed: dict[str, Any] = tf.io.parse_example(records, spec)
    return parsed


def _check_states(
    files: Sequence[pathlib.Path], states: Sequence[tuple[int, int]]
) -> None:
    for file, state in zip(files, states, strict=True):
        if _state(file) != state:
            raise ValueError(
                f"'{file}' must stay as it was when the conversion began. "
                "Received: other content. Convert again when nobody writes to it."
            )


def _state(file: pathlib.Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns
