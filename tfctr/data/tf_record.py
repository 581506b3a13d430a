"""`TFRecordLog`: TFRecord files of `tf.train.Example` as a click log."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.data.blocked_click_log import SHUFFLE_ROWS, BlockedClickLog
from tfctr.data.columns import Array, Bag, Examples
from tfctr.data.data_files import find_files
from tfctr.data.raw_table import MISSING_ID, RawTable
from tfctr.data.record_files import AROUND, BEFORE, kinds_of, read_records, shown
from tfctr.data.split import TestSplit
from tfctr.declaration import FeatureDeclaration

_BLOCK_RECORDS = 16_384
_EXAMPLE = "a `tf.train.Example` whose features are of the declared kinds"
_LABEL = "a label of 0 or 1"


@dataclasses.dataclass(frozen=True)
class _Block:
    path: pathlib.Path
    start: int  # In bytes.
    lengths: npt.NDArray[np.int64]  # Of all its records, the bad ones too.
    good: npt.NDArray[np.int64]  # Numbers of those that are examples.

    def __len__(self) -> int:
        return len(self.good)


class TFRecordLog(BlockedClickLog[_Block]):
    """Reads TFRecord files of `tf.train.Example`, not compressed.

    The features say which columns are read, and as what; columns of kind "ids" and
    "strings" become bags. What an example lacks is the id -1, the empty text, the
    feature's `missing`, or the empty list. Numbers may be `int64_list` or `float_list`,
    as in the first records. All files are read once when the log is opened, which finds
    bad records and where each begins. The last part of the records, in the order of
    the names of the files, is the test split.

    Args:
        path: String or path. A file, or a directory of files.
        features: `FeatureDeclaration`s.
        label: String. The column of the labels, 0 and 1.
        test: Float, string or path, or `RandomSplit`; see `Criteo`.
        on_bad_line: String. "raise" stops at a record that is not like that, and where
            a file is damaged or cut off. "skip" leaves such records out, and what comes
            behind damage, counts them and logs the first.
        shuffle_rows: Integer. How many examples are shuffled together; see `Criteo`.

    Raises:
        FileNotFoundError: If there is no file.
        PermissionError: If a file may not be read.
        ValueError: If an argument is out of its range, at a bad record, or if no record
            is left.

    Example:

    >>> import pathlib, tempfile, tensorflow as tf
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part-0.tfrecord"
    >>> def ints(*values):
    ...     return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    >>> columns = {"label": ints(1), "items": ints(3, 5)}
    >>> example = tf.train.Example(features=tf.train.Features(feature=columns))
    >>> with tf.io.TFRecordWriter(str(path)) as writer:
    ...     writer.write(example.SerializeToString())
    >>> log = TFRecordLog(path, [FeatureDeclaration("items", kind="ids")])
    >>> next(iter(log.batches("train", batch_size=1)))[0]["items"]
    <tf.RaggedTensor [[3, 5]]>
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
        self._label = label
        self._spec: dict[str, Any] = {}
        super().__init__(features, path, test, on_bad_line, shuffle_rows)

    def _scan(self, path: str | os.PathLike[str]) -> list[_Block]:
        blocks = []
        for file in find_files(path, "TFRecord"):
            start = first_record = 0
            for records in read_records(file, self._bad_lines, _BLOCK_RECORDS):
                lengths = np.array([len(record) for record in records], np.int64)
                good = self._good(file, records, first_record)
                if len(good):
                    blocks.append(_Block(file, start, lengths, good))
                start += int(lengths.sum()) + AROUND * len(lengths)
                first_record += len(lengths)
        if not blocks:
            raise self._bad_lines.none_good(path, "record")
        return blocks

    def _good(
        self, file: pathlib.Path, records: list[bytes], first_record: int
    ) -> npt.NDArray[np.int64]:
        """Returns the numbers of the good records, and notes the bad ones."""
        import tensorflow as tf

        if not self._spec:
            self._spec = self._spec_of(file, records)
        # The message quotes the record, which may be no text.
        unreadable = (tf.errors.InvalidArgumentError, UnicodeDecodeError)
        expected = dict.fromkeys(range(len(records)), "")
        try:
            labels = self._parse(records)[self._label].numpy()
        except unreadable:
            labels = np.zeros(len(records), np.float32)
            for number, record in enumerate(records):
                try:
                    labels[number] = self._parse([record])[self._label].numpy()[0]
                except unreadable:
                    expected[number] = _EXAMPLE
        for number in np.flatnonzero((labels != 0) & (labels != 1)).tolist():
            expected[number] = expected[number] or _LABEL
        for number, reason in expected.items():
            if reason:
                content = shown(records[number])
                if reason is _LABEL:
                    content = str(labels[number])
                place = first_record + number + 1
                self._bad_lines.add(file, place, content, reason, "record")
        return np.array([n for n, reason in expected.items() if not reason], np.int64)

    def _spec_of(self, file: pathlib.Path, records: list[bytes]) -> dict[str, Any]:
        """Returns what `tf.io.parse_example` is told of the columns."""
        names = [name for feature in self._declared for name in feature.sources]
        wanted = (self._label, *names)
        found: dict[str, str | None] = {}
        for record in records:
            found |= kinds_of(record) or {}
            if found.keys() >= set(wanted):
                break
        for name in wanted:
            if name not in found:
                raise ValueError(
                    f"{file} must have a column '{name}'. Received: {len(records)} "
                    f"first records with {', '.join(sorted(found)) or 'none'}. Correct "
                    "the name, or write it into at least one of them."
                )
        if found[self._label] == "bytes_list":
            raise ValueError(
                f"{file}, column '{self._label}', must hold the labels, 1 for a click "
                "and 0 for none. Received: bytes_list. Name another column by "
                "`label`, in a configuration data.label, or write this one anew."
            )
        spec = {self._label: _number(found[self._label], float("nan"))}
        for feature in self._declared:
            for name in feature.sources:
                spec[name] = _column_spec(feature, found[name])
        return spec

    def _parse(self, records: Any) -> Any:
        import tensorflow as tf

        with tf.device("CPU:0"):
            return tf.io.parse_example(records, self._spec)

    def _read_block(self, block: int) -> Examples:
        place = self._blocks[block]
        ends = np.cumsum(place.lengths + AROUND)
        starts = ends - place.lengths - AROUND + BEFORE
        with place.path.open("rb") as file:
            file.seek(place.start)
            text = file.read(int(ends[-1]))
        stops = starts + place.lengths
        records = [
            text[starts[number] : stops[number]] for number in place.good.tolist()
        ]
        parsed = self._parse(records)
        columns = {
            name: _to_column(value)
            for name, value in parsed.items()
            if name != self._label
        }
        labels = parsed[self._label].numpy().astype(np.float32)
        return RawTable(columns, labels).examples(self._declared)


def _number(kind: str | None, missing: float) -> Any:
    import tensorflow as tf

    if kind == "int64_list":
        return tf.io.FixedLenFeature([], tf.int64, default_value=MISSING_ID)
    return tf.io.FixedLenFeature([], tf.float32, default_value=missing)


def _column_spec(feature: FeatureDeclaration, kind: str | None) -> Any:
    import tensorflow as tf

    if feature.kind == "dense" or feature.transform == "bucketize":
        if kind == "int64_list":  # To tell a number from none, see `_to_column`.
            return tf.io.RaggedFeature(tf.int64)
        return _number(kind, float("nan"))
    if feature.is_list:
        kind_of_value = tf.int64 if feature.kind == "ids" else tf.string
        return tf.io.RaggedFeature(kind_of_value, row_splits_dtype=tf.int64)
    if feature.kind == "id":
        return tf.io.FixedLenFeature([], tf.int64, default_value=MISSING_ID)
    return tf.io.FixedLenFeature([], tf.string, default_value="")


def _to_column(value: Any) -> "Array | Bag":
    import tensorflow as tf

    if not isinstance(value, tf.RaggedTensor):
        column: Array = value.numpy()
        return column
    if value.row_splits.dtype == tf.int64:
        return Bag(value.values.numpy(), value.row_splits.numpy())
    # An integer or none: the first of the list, or NaN.
    splits = value.row_splits.numpy()
    numbers = np.full(len(splits) - 1, np.nan)
    is_there = np.diff(splits) > 0
    numbers[is_there] = value.values.numpy()[splits[:-1][is_there]]
    return numbers
