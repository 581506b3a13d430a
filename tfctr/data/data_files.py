"""`find_files`: the files that a path stands for."""

import os
import pathlib
import re


def find_files(path: str | os.PathLike[str], expected: str) -> list[pathlib.Path]:
    """Returns a file itself, or the files of a directory in the order of their names.

    Numbers in names count as numbers: `day_2` comes before `day_10`. Files whose names
    begin with `.` or `_`, marks of other programs, are left out.

    Args:
        path: String or path.
        expected: String. What the files hold, for messages.

    Raises:
        FileNotFoundError: If there is no such path, or no file in the directory.
        PermissionError: If a directory or file may not be read.
    """
    place = pathlib.Path(path)
    try:
        if place.is_dir():
            files = [
                file
                for file in place.iterdir()
                if file.is_file() and not file.name.startswith((".", "_"))
            ]
        else:
            files = [place] if place.exists() else []
    except PermissionError as error:
        raise _no_permission(place) from error
    if not files:
        found = "which holds no file" if place.is_dir() else "which does not exist"
        raise FileNotFoundError(
            f"The path of the data must be a file of {expected}, or a directory of "
            f"such files. Received: '{place}', {found}. Correct the path."
        )
    for file in files:
        if not os.access(file, os.R_OK):
            raise _no_permission(file)
    return sorted(files, key=_natural)


def _natural(file: pathlib.Path) -> list[tuple[int, str]]:
    return [
        (int(word), "") if word.isdigit() else (-1, word)
        for word in re.split(r"(\d+)", file.name)
    ]


def _no_permission(place: pathlib.Path) -> PermissionError:
    return PermissionError(
        f"'{place}' must be readable. Received: no permission. Give it to this user, "
        f"for example by `chmod -R u+rX '{place}'`."
    )
