"""Keeps what an earlier run has told apart from what another one is going to."""

import itertools
import os
import pathlib

from tfctr.report import events, page, scalars


def set_aside(directory: str | os.PathLike[str]) -> None:
    """Moves the files of an earlier run into a folder of their own beside them.

    That folder, `earlier-1` or the next free number, is then the directory of that run,
    for `tfctr top` and TensorBoard too.

    Args:
        directory: Path of a run.

    Raises:
        OSError: If they cannot be moved.
    """
    directory = pathlib.Path(directory)
    if not events.has_events(directory):
        return
    folders = (directory / f"earlier-{number}" for number in itertools.count(1))
    folder = next(path for path in folders if not path.exists())
    folder.mkdir()
    # The events last: as long as they are here, so is the run.
    for name in (page.FILE_NAME, scalars.FOLDER, events.FILE_NAME):
        if (directory / name).exists():
            os.replace(directory / name, folder / name)
