"""Snapshots that are damaged, or do not fit: found, named and refused."""

import re

import pytest
import tensorflow as tf

from helpers.snapshots import contents, fill, restored, train
from tfctr_ops import SparseOptimizer, find_damage, read_info

# Damage.


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def damaged(*names):
    return pytest.raises(tf.errors.DataLossError, match=re.escape(str(names[0])))


@pytest.fixture
def saved(make_mix, tmp_path):
    fill(make_mix("ram")).save(str(tmp_path / "saved"))
    return tmp_path / "saved"


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.99])
def test_a_flipped_bit_is_found_wherever_it_is(make_mix, saved, place):
    assert find_damage(str(saved)) == []
    file = max(read_info(str(saved)).files, key=lambda file: file.rows)
    path = saved / file.name
    flip(path, int(place * file.bytes))
    lines = find_damage(str(saved))
    assert len(lines) == 1
    assert f"'{path}'" in lines[0]
    store = fill(make_mix("ram"))
    with damaged(path):
        restored(store, saved)
    assert contents(store) == ({}, 0)


def test_every_damaged_file_is_named(saved):
    files = read_info(str(saved)).files[:3]
    for file in files:
        flip(saved / file.name, 100)
    lines = find_damage(str(saved))
    assert len(lines) == 3
    for file, line in zip(files, lines, strict=True):
        assert str(saved / file.name) in line


def test_a_missing_file_is_named(make_mix, saved):
    path = saved / read_info(str(saved)).files[0].name
    path.unlink()
    assert [str(path) in line for line in find_damage(str(saved))] == [True]
    store = make_mix("ram")
    with pytest.raises(tf.errors.UnavailableError, match=re.escape(str(path))):
        restored(store, saved)
    assert contents(store) == ({}, 0)


def test_a_file_that_is_cut_off_is_named(make_mix, saved):
    file = read_info(str(saved)).files[0]
    with (saved / file.name).open("rb+") as opened:
        opened.truncate(file.bytes - 1)
    assert len(find_damage(str(saved))) == 1
    with pytest.raises(tf.errors.OpError, match=re.escape(file.name)):
        restored(make_mix("ram"), saved)


def manifest_of(directory):
    names = {file.name for file in read_info(str(directory)).files}
    (path,) = [path for path in directory.iterdir() if path.name not in names]
    return path


@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_a_damaged_manifest_is_found(make_mix, saved, place):
    path = manifest_of(saved)
    flip(path, int(place * path.stat().st_size))
    store = fill(make_mix("ram"))
    before = contents(store)
    for fails in (read_info, lambda directory: restored(store, directory)):
        with damaged(path):
            fails(str(saved))
    assert contents(store) == before  # Nothing was replaced yet.
    assert len(find_damage(str(saved))) == 1


def test_a_manifest_that_is_cut_off_is_found(saved):
    path = manifest_of(saved)
    path.write_bytes(b"tfctr")
    with damaged(f"'{path}' is no manifest of tfctr: it has 5 bytes."):
        read_info(str(saved))


# Refusals.


def refuses(error, message):
    return pytest.raises(error, match=re.escape(message))


def test_a_snapshot_replaces_nothing(make_mix, saved, tmp_path):
    message = (
        f"A snapshot is written to a new directory. Received: '{saved}', which exists. "
        "Name another, or remove it."
    )
    with refuses(tf.errors.FailedPreconditionError, message):
        make_mix("ram").save(str(saved))
    assert find_damage(str(saved)) == []


def test_a_snapshot_is_begun_before_it_is_finished(make_mix, saved, tmp_path):
    message = (
        "Table 'users' has no snapshot to finish: none was begun, or its rows were "
        "replaced since, or another was begun. Save again."
    )
    store = make_mix("ram")
    with refuses(tf.errors.FailedPreconditionError, message):
        store.finish_save()
    store.begin_save(str(tmp_path / "other"))
    restored(store, saved)
    with refuses(tf.errors.FailedPreconditionError, message):
        store.finish_save()
    assert not list(tmp_path.glob("other*"))


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"dim": 5, "default_row": (0.0,) * 5},
            "Table 'users' has rows of dim=5 with 5 optimizer values",
        ),
        (
            {"optimizer": SparseOptimizer("adam")},
            "Table 'users' has rows of dim=3 with 6 optimizer values",
        ),
    ],
)
def test_a_snapshot_of_other_rows_is_refused(make_mix, saved, options, message):
    store = make_mix("ram", **options)
    with refuses(tf.errors.InvalidArgumentError, message) as error:
        restored(store, saved)
    assert f"Received: the snapshot '{saved}' with dim=3, 3 values" in str(error.value)
    assert contents(store) == ({}, 0)


def test_features_lie_in_range(make_mix, saved):
    message = "`features` must lie in [0, 2). Received: 2."
    store = fill(make_mix("ram"))
    before = contents(store)
    with refuses(tf.errors.InvalidArgumentError, message):
        restored(store, saved, features=(0, 2))
    assert contents(store) == before


def test_seeds_are_one_per_feature(make_mix, saved):
    message = "`seeds` must be one per feature: 2. Received: 3."
    store = fill(make_mix("ram"))
    before = contents(store)
    with refuses(tf.errors.InvalidArgumentError, message):
        restored(store, saved, seeds=(1, 2, 3))
    assert contents(store) == before


def test_a_snapshot_that_does_not_fit_is_refused(make_mix, saved):
    store = make_mix("ram", limit_bytes=1000)
    train(store, [1, 2, 3, 4])
    before, rows = contents(store), read_info(str(saved)).rows
    message = (
        f"Table 'users' cannot take {rows} rows of 48 bytes: the budget is ram=1000 "
        f"bytes. The table is as it was. Raise `ram` to {rows * 48} bytes or more."
    )
    with refuses(tf.errors.ResourceExhaustedError, message):
        restored(store, saved)
    assert contents(store) == before
    enough = make_mix("ram", limit_bytes=rows * 48)
    assert len(contents(restored(enough, saved))[0]) == rows


def test_a_directory_that_cannot_be_made_is_named(make_mix, tmp_path):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(tf.errors.OpError, match=re.escape(str(tmp_path / "file"))):
        make_mix("ram").save(str(tmp_path / "file" / "saved"))
