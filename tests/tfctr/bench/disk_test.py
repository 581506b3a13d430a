import os
import shutil
from collections import namedtuple

import pytest

from tfctr.bench import disk
from tfctr_ops import RowInitializer, SparseOptimizer, StoreConfig


def test_scratch_is_a_directory_that_is_gone_afterwards(tmp_path):
    with disk.scratch(str(tmp_path), 1) as place:
        assert place.parent == tmp_path
        assert list(place.iterdir()) == []
        (place / "file").write_text("rows")
    assert list(tmp_path.iterdir()) == []


def test_scratch_lies_in_the_current_directory_unless_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with disk.scratch(None, 1) as place:
        assert place.parent == tmp_path


def test_a_directory_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"Received: --directory {tmp_path}/none."):
        with disk.scratch(f"{tmp_path}/none", 1):
            pass


def test_a_disk_without_room_is_refused(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9, 0, int(2e9)))
    message = f"needs 3.0 GB of disk. Received: '{tmp_path}' with 2.0 GB free."
    with pytest.raises(ValueError, match=message):
        with disk.scratch(str(tmp_path), int(3e9)):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_read_past_the_page_cache_is_refused(
    tmp_path, monkeypatch
):
    open_file = os.open

    def refuse(path, flags, *arguments, **named):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return open_file(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ValueError, match=f"Received: '{tmp_path}', whose file system"):
        with disk.scratch(str(tmp_path), 1):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dim", [1, 16])
def test_bytes_of_a_row_are_those_of_the_store(dim):
    config = StoreConfig(
        "table",
        dim,
        SparseOptimizer("adagrad"),
        RowInitializer("constant"),
        feature_seeds=(0,),
        default_row=(0.0,) * dim,
    )
    assert disk.row_bytes(dim) == config.row_bytes
