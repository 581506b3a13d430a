"""What tests of `train` share, and those of logs in the order of time."""

import shutil

import pytest


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
