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
        FileNotFoundError: If there is no such path, no file in the directory, or a link
            to nothing.
        PermissionError: If a directory or file may not be read.
    """
    place = pathlib.Path(path)
    try:
        if place.is_dir():
            files = [
                file
                for file in place.iterdir()
                if not file.name.startswith((".", "_"))
                and (file.is_file() or _is_broken(file))
            ]
        else:
            files = [place] if place.exists() or _is_broken(place) else []
    except PermissionError as error:
        raise _no_permission(place) from error
    if not files:
        found = "which holds no file" if place.is_dir() else "which does not exist"
        raise FileNotFoundError(
            f"The path of the data must be a file of {expected}, or a directory of "
            f"such files. Received: '{place}', {found}. Correct the path."
        )
    files.sort(key=_natural)
    for file in files:
        if _is_broken(file):
            raise FileNotFoundError(
                f"'{file}' must be a file. Received: a link to '{os.readlink(file)}', "
                "which leads to no file. Restore that, or remove the link."
            )
        if not os.access(file, os.R_OK):
            raise _no_permission(file)
    return files


def _is_broken(file: pathlib.Path) -> bool:
    return file.is_symlink() and not file.exists()


def _natural(file: pathlib.Path) -> tuple[list[tuple[int, str]], str]:
    words = [
        # To `isdigit`, superscripts are digits, of which `int` and `re` know nothing.
        (int(word), "") if word.isdecimal() else (-1, word)
        for word in re.split(r"(\d+)", file.name)
    ]
    return words, file.name  # `day_1` and `day_01` have the same numbers.


def _no_permission(place: pathlib.Path) -> PermissionError:
    return PermissionError(
        f"'{place}' must be readable. Received: no permission. Give it to this user, "
        f"for example by `chmod -R u+rX '{place}'`."
    )
