"""Room on a disk for what a benchmark writes."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

_PAGE_BYTES = 4096


@contextlib.contextmanager
def scratch(directory: str | None, needed_bytes: int) -> Iterator[pathlib.Path]:
    """A new directory on a disk that suits, removed at the end.

    Args:
        directory: Where to make it. `None` means the current directory.
        needed_bytes: Integer. What will be written at most.

    Raises:
        ValueError: If `directory` is none, has too little room, or its file system can
            not be read past the page cache.
    """
    parent = pathlib.Path(directory or ".").absolute()
    if not parent.is_dir():
        raise ValueError(
            "--directory must be a directory that exists. "
            f"Received: --directory {directory}."
        )
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise ValueError(
            f"The benchmark needs {needed_bytes / 1e9:.1f} GB of disk. Received: "
            f"'{parent}' with {free / 1e9:.1f} GB free. Name a directory that has "
            "more: --directory DIR."
        )
    with tempfile.TemporaryDirectory(prefix="tfctr-bench-", dir=parent) as made:
        path = pathlib.Path(made)
        if not _reads_directly(path):
            raise ValueError(
                "The benchmark needs a disk that can be read past the page cache. "
                f"Received: '{parent}', whose file system refuses that. Name a "
                "directory on an SSD: --directory DIR."
            )
        yield path


def _reads_directly(directory: pathlib.Path) -> bool:
    probe = directory / "probe"
    probe.write_bytes(bytes(_PAGE_BYTES))
    try:
        os.close(os.open(probe, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    finally:
        probe.unlink()
    return True


def row_bytes(dim: int) -> int:
    """Of a row with one Adagrad slot: what `StoreConfig.row_bytes` says."""
    return 24 + 2 * 4 * dim
