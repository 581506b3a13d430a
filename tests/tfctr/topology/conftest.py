"""Machines written by hand."""

import pytest


@pytest.fixture
def write_root(tmp_path):
    """Writes files below a root directory, from their texts, and returns it.

    A text that begins with `->` makes a link; `None` makes a directory.
    """

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.mkdir(exist_ok=True)
            elif text.startswith("->"):
                path.symlink_to(text.removeprefix("->"))
            else:
                path.write_text(f"{text}\n")
        return tmp_path

    return write
