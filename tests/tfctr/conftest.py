"""What tests of `train` share, and those of logs in the order of time."""

import importlib.util
import pathlib
import shutil
import sys

import pytest

for name in ("timed_logs", "training_runs"):
    path = pathlib.Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


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
