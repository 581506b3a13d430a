"""`CheckpointDirectory`: what is there, what is whole, and who may write."""

import hashlib
import json
import re

import pytest

from tfctr.checkpoint import CheckpointDirectory


@pytest.fixture
def directory(tmp_path):
    directory = CheckpointDirectory(tmp_path / "saved")
    yield directory
    directory.unlock()


def save(directory, step, content=b"content"):
    draft = directory.draft(step)
    (draft / "dense.npz").write_bytes(content)
    (draft / "layer-0").mkdir()
    (draft / "layer-0" / "rows").write_bytes(b"rows")
    return directory.commit(step, {"step": step, "any": ["state", 1]})


def refuses(message):
    return pytest.raises(ValueError, match=re.escape(message))


def test_a_directory_that_is_not_there_has_no_checkpoints(directory):
    assert directory.steps() == []
    assert not directory.path.exists()


def test_checkpoints_are_listed_in_order(directory):
    for step in (30, 5, 1000):
        save(directory, step)
    directory.draft(7)
    (directory.path / "step-5").mkdir()
    (directory.path / "notes").write_text("of the user")
    assert directory.steps() == [5, 30, 1000]
    assert directory.of_step(30) == directory.path / "step-000000000030"


def test_a_state_comes_back_with_the_checksums(directory):
    path = save(directory, 5)
    assert path == directory.of_step(5)
    digest = hashlib.sha256(b"content").hexdigest()
    assert directory.read_state(5) == {
        "version": 2,
        "files": {"dense.npz": digest},
        "step": 5,
        "any": ["state", 1],
    }
    assert (path / "layer-0" / "rows").read_bytes() == b"rows"


def test_a_draft_is_no_checkpoint_until_it_is_committed(directory):
    draft = directory.draft(5)
    (draft / "dense.npz").write_bytes(b"old")
    assert directory.steps() == []
    assert list(directory.draft(5).iterdir()) == []  # Begun anew.


def test_a_checkpoint_of_the_same_step_is_replaced(directory):
    save(directory, 5, b"old")
    save(directory, 5, b"new")
    assert (directory.of_step(5) / "dense.npz").read_bytes() == b"new"
    directory.read_state(5)
    assert [path.name for path in directory.path.iterdir()] == ["step-000000000005"]


def test_a_checkpoint_is_removed_whole(directory):
    save(directory, 5)
    save(directory, 6)
    directory.draft(5)  # A draft of the same step is in nobody's way.
    directory.remove(5)
    assert directory.steps() == [6]
    assert [path.name for path in directory.path.iterdir()] == ["step-000000000006"]


# Damage.


def advice(directory):
    return (
        f"The checkpoint before it is '{directory.of_step(5)}': remove "
        f"'{directory.of_step(6)}' to go back to it."
    )


@pytest.fixture
def two(directory):
    save(directory, 5)
    save(directory, 6)
    return directory


def test_a_damaged_file_is_named(two):
    path = two.of_step(6) / "dense.npz"
    path.write_bytes(b"c0ntent")
    expected = hashlib.sha256(b"content").hexdigest()
    found = hashlib.sha256(b"c0ntent").hexdigest()
    with refuses(
        f"'{path}' is damaged: expected SHA-256 {expected}. Received: {found}. "
        + advice(two)
    ):
        two.read_state(6)
    two.read_state(5)


def test_a_missing_file_is_named(two):
    path = two.of_step(6) / "dense.npz"
    path.unlink()
    with refuses(f"'{path}' is damaged") as error:
        two.read_state(6)
    assert str(error.value).endswith(f"Received: no file. {advice(two)}")


@pytest.mark.parametrize("text", ["", "{", '{"step": 6}', '{"files": '])
def test_a_damaged_state_is_named(two, text):
    path = two.of_step(6) / "state.json"
    path.write_text(text)
    with refuses(
        f"'{path}' is damaged: expected JSON with the keys 'checksum' and 'files'. "
        "Received: "
    ) as error:
        two.read_state(6)
    assert str(error.value).endswith(advice(two))


def test_a_missing_state_is_named(two):
    path = two.of_step(6) / "state.json"
    path.unlink()
    with refuses(f"'{path}' is damaged"):
        two.read_state(6)


def test_a_changed_state_is_named(two):
    path = two.of_step(6) / "state.json"
    text = path.read_text()
    assert '"step": 6' in text
    path.write_text(text.replace('"step": 6', '"step": 8'))
    with refuses(f"'{path}' is damaged: expected SHA-256 ") as error:
        two.read_state(6)
    assert str(error.value).endswith(advice(two))


@pytest.mark.parametrize("change", ["remove", "damage"])
def test_the_manifest_of_a_table_is_looked_after(two, change):
    table = two.draft(7) / "layer-0" / "0"
    table.mkdir(parents=True)
    (table / "MANIFEST").write_bytes(b"rows")
    two.commit(7, {"step": 7})
    path = two.of_step(7) / "layer-0" / "0" / "MANIFEST"
    two.read_state(7)
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes(b"r0ws")
    with refuses(f"'{path}' is damaged: expected SHA-256 "):
        two.read_state(7)


def test_the_oldest_checkpoint_has_none_before_it(two):
    (two.of_step(5) / "dense.npz").unlink()
    with refuses("Received: no file. There is no older checkpoint."):
        two.read_state(5)


def test_a_newer_version_is_refused(two):
    path = two.of_step(6)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "version": 9}))
    with refuses(f"'{path}' has version 9 of the format; this tfctr reads version 2."):
        two.read_state(6)


# The lock.


def test_a_directory_belongs_to_one_at_a_time(directory):
    directory.lock()
    directory.lock()  # It has it.
    other = CheckpointDirectory(directory.path)
    with refuses(
        "A checkpoint directory belongs to one training at a time. Received: "
        f"'{directory.path}', which another process is writing to. Name another "
        "directory, or end that process."
    ):
        other.lock()
    directory.unlock()
    directory.unlock()
    other.lock()
    other.unlock()


def test_a_file_in_its_place_is_told(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path, reason in (
        (tmp_path / "file", "File exists"),
        (tmp_path / "file" / "checkpoints", "Not a directory"),
    ):
        with pytest.raises(OSError) as raised:
            CheckpointDirectory(path).lock()
        assert str(raised.value) == (
            "Checkpoints need a directory that can be written to, or a place to make "
            f"one. Received: '{path}' ({reason}). Name another directory, or move away "
            "what is there."
        )


def test_to_lock_removes_what_a_dead_process_left(directory):
    save(directory, 5)
    (directory.draft(6) / "dense.npz").write_bytes(b"half")
    assert directory.draft(7).exists()
    directory.lock()
    names = sorted(path.name for path in directory.path.iterdir())
    assert names == ["LOCK", "step-000000000005"]
