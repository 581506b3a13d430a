"""Writers of pyarrow tables: Parquet, TFRecord, and the lines of public logs."""

import abc
import pathlib
from typing import Any, Self

from tfctr.data.avazu import AVAZU_LINE
from tfctr.data.criteo import CRITEO_LINE
from tfctr.data.delimited_click_log import LineFormat

# Rows of a file, and of a row group in it: a block for the reader.
_FILE_ROWS = 1 << 22
GROUP_ROWS = 1 << 16


class TableWriter(abc.ABC):
    """Writes tables, which have the same columns, to one file.

    Args:
        path: `pathlib.Path`. The name ends in `ending`.
    """

    ending: str

    @abc.abstractmethod
    def __init__(self, path: pathlib.Path) -> None: ...

    @abc.abstractmethod
    def write(self, table: Any) -> None:
        """Appends a pyarrow table."""

    @abc.abstractmethod
    def close(self) -> None:
        """Completes the file."""


class ParquetWriter(TableWriter):
    ending = ".parquet"

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._writer: Any = None
        self._held: list[Any] = []
        self._held_rows = 0

    def write(self, table: Any) -> None:
        self._held.append(table)
        self._held_rows += table.num_rows
        if self._held_rows >= GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        if not self._held:
            return
        table = pa.concat_tables(self._held)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table, row_group_size=GROUP_ROWS)
        self._held, self._held_rows = [], 0


class TFRecordWriter(TableWriter):
    ending = ".tfrecord"

    def __init__(self, path: pathlib.Path) -> None:
        import tensorflow as tf

        self._writer = tf.io.TFRecordWriter(str(path))

    def write(self, table: Any) -> None:
        import tensorflow as tf

        make = {
            int: lambda some: tf.train.Feature(
                int64_list=tf.train.Int64List(value=some)
            ),
            float: lambda some: tf.train.Feature(
                float_list=tf.train.FloatList(value=some)
            ),
            bytes: lambda some: tf.train.Feature(
                bytes_list=tf.train.BytesList(value=some)
            ),
        }
        for row in table.to_pylist():
            features = {}
            for name, value in row.items():
                some = value if isinstance(value, list) else [value]
                some = [_plain(item) for item in some if item is not None]
                if some:
                    features[name] = make[type(some[0])](some)
            example = tf.train.Example(features=tf.train.Features(feature=features))
            self._writer.write(example.SerializeToString())

    def close(self) -> None:
        self._writer.close()


class LineWriter(TableWriter):
    """Writes lines of fields; subclasses say which."""

    line: LineFormat

    def __init__(self, path: pathlib.Path) -> None:
        self._file = path.open("wb")
        if self.line.header:
            self._file.write(self.line.delimiter.join(self.line.names).encode() + b"\n")

    def write(self, table: Any) -> None:
        import pyarrow as pa
        from pyarrow import csv

        columns = [
            _hexadecimal(table[name]) if kind == "h" else table[name]
            for name, kind in zip(self.line.names, self.line.kinds, strict=True)
        ]
        options = csv.WriteOptions(
            include_header=False, delimiter=self.line.delimiter, quoting_style="none"
        )
        csv.write_csv(
            pa.table(columns, names=list(self.line.names)), self._file, options
        )

    def close(self) -> None:
        self._file.close()


class CriteoWriter(LineWriter):
    line = CRITEO_LINE
    ending = ".tsv"


class AvazuWriter(LineWriter):
    line = AVAZU_LINE
    ending = ".csv"


WRITERS: dict[str, type[TableWriter]] = {
    "parquet": ParquetWriter,
    "tfrecord": TFRecordWriter,
    CRITEO_LINE.name: CriteoWriter,
    AVAZU_LINE.name: AvazuWriter,
}


class PartWriter:
    """Writes tables to files `part-00000` and so on, of some million rows each.

    Until all are whole, their names begin with `_`, which readers pass over. After an
    error, none is left.

    Args:
        directory: `pathlib.Path`.
        kind: `TableWriter` class.
    """

    def __init__(self, directory: pathlib.Path, kind: type[TableWriter]) -> None:
        self._directory = directory
        self._kind = kind
        self._writer: TableWriter | None = None
        self._rows_of_file = 0
        self._paths: list[pathlib.Path] = []
        self.num_rows = 0

    @property
    def num_files(self) -> int:
        return len(self._paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            self._close()
            if error is None:
                for path in self._paths:
                    path.rename(path.with_name(path.name.removeprefix("_")))
        finally:
            for path in self._paths:
                path.unlink(missing_ok=True)

    def write(self, table: Any) -> None:
        if self._writer is None or self._rows_of_file >= _FILE_ROWS:
            self._close()
            name = f"_part-{self.num_files:05}{self._kind.ending}"
            self._paths.append(self._directory / name)
            self._writer = self._kind(self._paths[-1])
            self._rows_of_file = 0
        self._writer.write(table)
        self._rows_of_file += table.num_rows
        self.num_rows += table.num_rows

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return value.encode() if isinstance(value, str) else value


def _hexadecimal(column: Any) -> Any:
    """Returns ids below 2**32 as texts of 8 hexadecimal digits, as public logs do."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pc.fill_null(column, 0).to_numpy()
    digits = ids.astype(">u4").tobytes().hex().encode()
    offsets = np.arange(0, 8 * len(ids) + 1, 8, dtype=np.int64)
    texts = pa.LargeStringArray.from_buffers(
        len(ids), pa.py_buffer(offsets), pa.py_buffer(digits)
    )
    return pc.if_else(column.is_valid().combine_chunks(), texts, None)
