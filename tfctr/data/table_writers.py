"""Writers of pyarrow tables: Parquet, TFRecord, and the lines of public logs."""

import abc
import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from tfctr.data.avazu import AVAZU_LINE
from tfctr.data.criteo import CRITEO_LINE
from tfctr.data.delimited_click_log import LineFormat
from tfctr.data.example_columns import examples_of

# Rows of a row group: a block for the reader.
GROUP_ROWS = 1 << 16
_EXAMPLES = 1 << 13


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

        with _os_errors():
            self._writer = tf.io.TFRecordWriter(str(path))

    def write(self, table: Any) -> None:
        # Python's objects of a whole row group would take gigabytes.
        for batch in table.to_batches(max_chunksize=_EXAMPLES):
            examples = examples_of(batch)
            with _os_errors():
                for example in examples:
                    self._writer.write(example)

    def close(self) -> None:
        with _os_errors():
            self._writer.close()


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Turns what TensorFlow says of a file into an `OSError`."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        # Behind the path, which the caller names.
        raise OSError(error.message.rpartition("; ")[2]) from error


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
