"""`PartWriter`: writes tables to the files of a directory, all of them or none."""

import contextlib
import fcntl
import logging
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, Self

from tfctr.data.table_writers import WRITERS, TableWriter

_FILE_ROWS = 1 << 22
_UNFINISHED = re.compile(
    rf"_part-\d{{5,}}({'|'.join(re.escape(kind.ending) for kind in WRITERS.values())})"
)


class PartWriter:
    """Writes tables to files `part-00000` and so on, of some million rows each.

    Until all are whole, their names begin with `_`, which readers pass over. After an
    error, none is left. Those of a process that was killed are removed by the next one
    that writes to the directory; one that is still at work has it for itself.

    Args:
        directory: String or path. It must be empty or new.
        kind: `TableWriter` class.

    Raises:
        ValueError: At `with`, if the directory holds other files, or another process
            is writing to it.
        OSError: At `with`, if the directory cannot be made, or a file in it not be
            removed; and if a file cannot be written to its end.
    """

    def __init__(
        self, directory: str | os.PathLike[str], kind: type[TableWriter]
    ) -> None:
        self._directory = pathlib.Path(directory)
        self._kind = kind
        self._writer: TableWriter | None = None
        self._rows_of_file = 0
        self._paths: list[pathlib.Path] = []
        self._lock = contextlib.ExitStack()
        self.num_rows = 0

    @property
    def num_files(self) -> int:
        return len(self._paths)

    def __enter__(self) -> Self:
        if os.path.lexists(self._directory) and not self._directory.is_dir():
            raise _occupied(self._directory, "which is no directory")
        with contextlib.ExitStack() as lock:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                lock.enter_context(_locked(self._directory))
                _clear(self._directory)
            except OSError as error:
                raise OSError(
                    "The target must be a directory that can be written to, or a place "
                    f"to make one. Received: '{self._directory}' ({error.strerror}). "
                    "Name another."
                ) from error
            self._lock = lock.pop_all()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if error is None:
                self._close()
                self._name()
            else:
                # What went wrong is known, and may go wrong again.
                with contextlib.suppress(Exception):
                    self._close()
        finally:
            for path in self._paths:
                path.unlink(missing_ok=True)
            self._lock.close()

    def write(self, table: Any) -> None:
        if self._writer is None or self._rows_of_file >= _FILE_ROWS:
            self._close()
            name = f"_part-{self.num_files:05}{self._kind.ending}"
            self._paths.append(self._directory / name)
            with self._whole():
                self._writer = self._kind(self._paths[-1])
            self._rows_of_file = 0
        with self._whole():
            self._writer.write(table)
        self._rows_of_file += table.num_rows
        self.num_rows += table.num_rows

    def _name(self) -> None:
        """Gives the files, which are whole now, the names that readers look for."""
        named: list[pathlib.Path] = []
        try:
            for path in self._paths:
                named.append(path.with_name(path.name.removeprefix("_")))
                path.rename(named[-1])
        except BaseException:
            for path in named:
                path.unlink(missing_ok=True)
            raise

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with self._whole():
                writer.close()

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Says of an error of the disk which file it met, and how far that came."""
        try:
            yield
        except OSError as error:
            sizes = [path.stat().st_size for path in self._paths if path.exists()]
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(
                f"'{self._paths[-1]}' must be written to its end. Received: {reason}, "
                f"after {sum(sizes):,} bytes in {self.num_files} files, which are "
                "removed. Make room there, or name a target that has room and may be "
                "written to."
            ) from error


@contextlib.contextmanager
def _locked(directory: pathlib.Path) -> Iterator[None]:
    """Keeps other writers out of a directory, until this process ends or leaves."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _occupied(
                directory, "to which another process is writing now"
            ) from error
        except OSError:
            pass  # Some network file systems lock no directory.
        yield
    finally:
        os.close(descriptor)


def _clear(directory: pathlib.Path) -> None:
    """Removes what a killed writer left; other files are refused, and kept."""
    paths = sorted(directory.iterdir())
    left = [
        path for path in paths if path.is_file() and _UNFINISHED.fullmatch(path.name)
    ]
    others = [path for path in paths if path not in left]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise _occupied(directory, f"which holds '{others[0].name}'{more}")
    for path in left:
        path.unlink()
    if left:
        logging.getLogger("tfctr").warning(
            "Removed %d unfinished files, '%s' the first, that were left in '%s' by a "
            "process that was killed.",
            len(left),
            left[0].name,
            directory,
        )


def _occupied(directory: pathlib.Path, found: str) -> ValueError:
    return ValueError(
        "The target must be a new directory, or an empty one. "
        f"Received: '{directory}', {found}. Name another."
    )
