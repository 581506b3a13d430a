"""`BadLines`: raise, or skip and count."""

import logging
import pathlib

import pytest

from tfctr.data import BadLine
from tfctr.data.bad_lines import BadLines

PATH = pathlib.Path("users.dat")


def test_raise_names_file_line_and_content():
    with pytest.raises(
        ValueError,
        match=r"users.dat, line 7, must hold a user. Received: 'x::y'. "
        "Correct the line, or leave such lines out with on_bad_line='skip'.",
    ):
        BadLines("raise").add(PATH, 7, "x::y", "a user")


def test_skip_counts_and_keeps_the_first():
    bad_lines = BadLines("skip")
    bad_lines.add(PATH, 7, "x", "a user")
    bad_lines.add(PATH, 9, "y", "a user")
    assert bad_lines.count == 2
    assert bad_lines.first == BadLine(PATH, 7, "x", "a user")


def test_long_lines_are_shortened():
    bad_lines = BadLines("skip")
    bad_lines.add(PATH, 1, "x" * 1000, "a user")
    assert bad_lines.first.content == "x" * 100 + "..."


def test_report_is_one_warning_with_the_first_line(caplog):
    bad_lines = BadLines("skip")
    bad_lines.report()
    assert not caplog.records
    bad_lines.add(PATH, 7, "x", "a user")
    with caplog.at_level(logging.WARNING, logger="tfctr"):
        bad_lines.report()
    assert [record.getMessage() for record in caplog.records] == [
        "Left out 1 bad lines. The first: users.dat, line 7, must hold a user. "
        "Received: 'x'."
    ]


def test_mode_must_be_known():
    with pytest.raises(ValueError, match="Received: on_bad_line='ignore'. Use 'skip'"):
        BadLines("ignore")
