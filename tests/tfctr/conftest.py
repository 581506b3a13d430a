"""What tests of logs in the order of time share, in tests/tfctr/timed_logs.py."""

import importlib.util
import pathlib
import shutil
import sys

import pytest

PATH = pathlib.Path(__file__).with_name("timed_logs.py")
SPEC = importlib.util.spec_from_file_location("timed_logs", PATH)
timed_logs = sys.modules["timed_logs"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(timed_logs)


@pytest.fixture
def write_log(tmp_path):
    """Writes columns as Parquet, as `files` files with row groups of `group` rows."""

    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(columns, files=1, group=100):
        directory = tmp_path / "log"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        table = pa.table(columns)
        size = -(-len(table) // files)
        for number in range(files):
            part = table.slice(number * size, size)
            pq.write_table(part, directory / f"{number}.parquet", row_group_size=group)
        return directory

    return write
