"""`find_files`: all files of a log, in their order."""

import pytest

from tfctr.data.data_files import find_files


def test_numbers_in_names_count_as_numbers(tmp_path):
    expected = ["day_01", "day_1", "day_1²", "day_2", "day_10"]
    for name in (*expected, ".hidden", "_SUCCESS"):
        (tmp_path / name).write_text("")
    (tmp_path / "day_3").mkdir()
    assert [file.name for file in find_files(tmp_path, "clicks")] == expected


def test_equal_numbers_are_in_the_order_of_the_names(tmp_path):
    names = ["0" * number + "1" for number in range(9)]
    for name in names:
        (tmp_path / name).write_text("")
    found = [file.name for file in find_files(tmp_path, "clicks")]
    assert found == sorted(names)


def test_links_are_followed_and_those_to_nothing_refused(tmp_path):
    (tmp_path / "elsewhere").write_text("")
    log = tmp_path / "log"
    log.mkdir()
    (log / "day_0").symlink_to(tmp_path / "elsewhere")
    assert find_files(log, "clicks") == [log / "day_0"]
    (log / "day_1").symlink_to(tmp_path / "nowhere")
    for path in (log, log / "day_1"):
        with pytest.raises(FileNotFoundError) as raised:
            find_files(path, "clicks")
        assert str(raised.value) == (
            f"'{log}/day_1' must be a file. Received: a link to '{tmp_path}/nowhere', "
            "which leads to no file. Restore that, or remove the link."
        )
