"""Export directories: whole or not there, and what damage says."""

import json
import re

import pytest

from tfctr.export.draft import MANIFEST, new_directory, read_manifest, write_manifest


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "ads" / "1"
    with new_directory(path) as draft:
        (draft / "variables").mkdir()
        (draft / "variables" / "data").write_bytes(b"rows")
        write_manifest(draft, {"model": "ads"})
    return path


def test_it_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "ads" / "1"
    with new_directory(path) as draft:
        assert not path.exists()
        # What servers take for a version is a number.
        assert draft.parent == path.parent and not draft.name.isdigit()
    assert [entry.name for entry in path.parent.iterdir()] == ["1"]


def test_nothing_is_left_of_one_that_fails(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_directory(tmp_path / "1") as draft:
        (draft / "data").write_bytes(b"rows")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_file", [False, True], ids=["directory", "file"])
def test_what_exists_is_not_replaced(tmp_path, is_file):
    path = tmp_path / "1"
    path.write_text("") if is_file else path.mkdir()
    message = re.escape(f"Received: '{path}', which exists. Name the next version")
    with pytest.raises(ValueError, match=message), new_directory(path):
        pass
    assert list(tmp_path.iterdir()) == [path]


def test_what_came_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "1"
    with pytest.raises(ValueError, match="which exists"), new_directory(path):
        path.mkdir()
    assert list(tmp_path.iterdir()) == [path]


def test_a_whole_export_says_what_it_is(export):
    facts = read_manifest(export)
    assert facts["model"] == "ads"
    assert facts["files"]["variables/data"]["bytes"] == 4


def lose(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "harm, message",
    [
        (lose, "is damaged: expected 4 bytes. Received: no file. Copy"),
        (cut, "is damaged: expected 4 bytes. Received: 2 bytes. Copy"),
        (flip, "is damaged: expected SHA-256 "),
    ],
)
def test_damaged_files_are_named(export, harm, message):
    file = export / "variables" / "data"
    harm(file)
    with pytest.raises(ValueError, match=re.escape(f"'{file}' {message}")):
        read_manifest(export)


def test_a_manifest_of_another_version_is_refused(export, monkeypatch):
    monkeypatch.setattr("tfctr.export.draft._VERSION", 2)
    message = f"'{export / MANIFEST}' must be of version 2, which this tfctr reads. "
    with pytest.raises(ValueError, match=re.escape(f"{message}Received: 1. Use")):
        read_manifest(export)


def change(path):
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "model": "films"}))


@pytest.mark.parametrize(
    "harm, message",
    [
        (lose, "whole. Received: '{export}', without 'assets.extra/tfctr.json'. Copy"),
        (cut, "'{file}' is damaged: it is no manifest. Copy the export again."),
        (flip, "'{file}' is damaged: it is no manifest. Copy the export again."),
        (change, "'{file}' is damaged: expected SHA-256 "),
        (lambda path: path.write_text("[1]"), "'{file}' is damaged: it is no"),
    ],
    ids=["lost", "cut", "flipped", "changed", "another"],
)
def test_a_damaged_manifest_is_named(export, harm, message):
    file = export / MANIFEST
    harm(file)
    message = message.format(file=file, export=export)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_manifest(export)
