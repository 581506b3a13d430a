"""`PartWriter`: what is left of a conversion that was killed, or had no room."""

import contextlib
import fcntl
import os
import pathlib
import resource
import signal
import subprocess
import sys

import pytest

from tfctr import cli
from tfctr.data import SyntheticStream, conversion, part_writer, table_writers

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

KILLED = """
import os, signal, sys
from tfctr.data import conversion, part_writer, table_writers

part_writer._FILE_ROWS, table_writers.GROUP_ROWS = 50, 10
seen = []

def progress(_):
    seen.append(_)
    if len(seen) == 15:
        os.kill(os.getpid(), signal.SIGKILL)

conversion.convert(*sys.argv[1:], "parquet", "parquet", progress=progress)
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    table = pa.table({"label": [0, 1] * 100, "user": list(range(200))})
    parquet.write_table(table, path, row_group_size=10)
    return path


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_what_a_killed_conversion_left_is_removed(tmp_path, log, caplog):
    out = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", KILLED, log, out], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert names(out) == [f"_part-{number:05}.parquet" for number in range(3)]
    done = conversion.convert(log, out, "parquet", "parquet")
    assert done["examples"] == 200
    assert names(out) == ["part-00000.parquet"]
    assert parquet.read_table(out).equals(parquet.read_table(log))
    assert (
        "Removed 3 unfinished files, '_part-00000.parquet' the first, that were left "
        f"in '{out}' by a process that was killed."
    ) in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        "part-00001.parquet",
        "_part-1.parquet",
        "_part-00001.txt",
        "_notes",
        "x_part-00001",
    ],
)
def test_files_of_others_are_kept_and_refused(tmp_path, log, other):
    out = tmp_path / "out"
    out.mkdir()
    (out / other).write_text("mine")
    (out / "_part-00000.tfrecord").write_text("left")
    with pytest.raises(ValueError) as raised:
        conversion.convert(log, out, "parquet", "parquet")
    assert str(raised.value) == (
        "The target must be a new directory, or an empty one. Received: "
        f"'{out}', which holds '{other}'. Name another."
    )
    assert names(out) == sorted([other, "_part-00000.tfrecord"])


def test_a_target_that_is_no_directory_is_refused(tmp_path, log):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        message = f"Received: '{tmp_path / name}', which is no directory. Name an"
        with pytest.raises(ValueError, match=message):
            conversion.convert(log, tmp_path / name, "parquet", "parquet")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_target_that_cannot_be_made_is_refused(tmp_path, log):
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / "out"
    with pytest.raises(OSError) as raised:
        conversion.convert(log, out, "parquet", "parquet")
    assert str(raised.value) == (
        "The target must be a directory that can be written to, or a place to make "
        f"one. Received: '{out}' (Not a directory). Name another."
    )


def test_a_target_that_another_process_writes_to_is_refused(tmp_path, log):
    out = tmp_path / "out"
    out.mkdir()
    (out / "_part-00000.parquet").write_text("of the other one")
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        message = "'.*out', to which another process is writing now. Name another."
        with pytest.raises(ValueError, match=message):
            conversion.convert(log, out, "parquet", "parquet")
    finally:
        os.close(descriptor)
    assert names(out) == ["_part-00000.parquet"]
    conversion.convert(log, out, "parquet", "parquet")
    assert names(out) == ["part-00000.parquet"]


@contextlib.contextmanager
def room_for(num_bytes):
    """Lets no file of this process grow beyond this, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("parquet", "parquet"), ("tfrecord", "tfrecord"), ("tsv", "tsv")],
)
def test_a_full_disk_is_told_in_a_line(tmp_path, monkeypatch, capsys, kind, ending):
    monkeypatch.setattr(table_writers, "GROUP_ROWS", 100)
    monkeypatch.setattr(part_writer, "_FILE_ROWS", 400)
    monkeypatch.setattr(conversion, "_SYNTHETIC_ROWS", 200)
    out = tmp_path / "out"
    monkeypatch.setattr(conversion, "import_pyarrow", lambda: None)

    def draw(directory):
        conversion.synthesize(SyntheticStream(1_200, max_ids=10**6), directory, kind)

    draw(tmp_path / "whole")
    size = (tmp_path / "whole" / f"part-00000.{ending}").stat().st_size
    with room_for(size // 2), pytest.raises(OSError) as raised:
        draw(out)
    message = str(raised.value)
    path = out / f"_part-00000.{ending}"
    assert message.startswith(
        f"'{path}' must be written to its end. Received: File too large, after "
    )
    assert message.endswith(
        " bytes in 1 files, which are removed. Make room there, or name a target that "
        "has room and may be written to."
    )
    assert f"after {size // 2:,} bytes" in message
    assert names(out) == []
    assert capsys.readouterr().err == ""
    draw(out)  # With room again.
    assert len(names(out)) == 3


def test_the_command_tells_of_a_full_disk_in_a_line(tmp_path, log, capsys):
    words = ["data", "convert", str(log), str(tmp_path / "out"), "--from", "parquet"]
    with room_for(1_000):
        assert cli.main([*words, "--to", "tfrecord"]) == 2
    printed = capsys.readouterr()
    assert printed.out.endswith("\n")  # The bar does not run into it.
    [line] = printed.err.strip().split("\n")
    assert line.startswith(f"tfctr: '{tmp_path / 'out'}/_part-00000.tfrecord' must be")


def test_files_are_named_all_or_none(tmp_path, monkeypatch):
    rename = pathlib.Path.rename

    def fail_second(path, target):
        if "00001" in path.name:
            raise OSError("the disk is gone")
        return rename(path, target)

    monkeypatch.setattr(part_writer, "_FILE_ROWS", 1)
    monkeypatch.setattr(pathlib.Path, "rename", fail_second)
    with (
        pytest.raises(OSError, match="the disk is gone"),
        part_writer.PartWriter(tmp_path, table_writers.WRITERS["parquet"]) as writer,
    ):
        for _ in range(3):
            writer.write(pa.table({"a": [1]}))
    assert list(tmp_path.iterdir()) == []
