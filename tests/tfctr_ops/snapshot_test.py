"""Snapshots: what was saved comes back to the bit.

The oracle is `export_rows`, which knows nothing of files.
"""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from helpers.snapshots import DIM, FEATURES, MIXES, contents, fill, restored, train
from tfctr_ops import find_damage, read_info


@pytest.fixture(params=MIXES)
def mix(request):
    return request.param


# There and back.


def test_rows_come_back_to_the_bit(make_mix, mix, tmp_path):
    store = fill(make_mix(mix))
    expected = contents(store)
    report = store.save(str(tmp_path / "deep" / "saved"), "any text, ü")
    assert report["rows"] == len(expected[0])
    assert contents(store) == expected
    other = make_mix(mix)
    train(other, [5, 6, 7, 8])  # Which shall be gone.
    assert contents(restored(other, tmp_path / "deep" / "saved")) == expected


@pytest.mark.parametrize("target", MIXES)
def test_rows_come_back_into_another_mix(make_mix, mix, tmp_path, target):
    store = fill(make_mix(mix))
    store.save(str(tmp_path / "saved"))
    other = restored(make_mix(target), tmp_path / "saved")
    assert contents(other) == contents(store)
    # And go on alike.
    for each in (store, other):
        train(each, np.arange(-1500, 1500), seed=77)
    assert contents(other) == contents(store)


def test_an_empty_store_is_saved_too(make_mix, mix, tmp_path):
    report = make_mix(mix).save(str(tmp_path / "saved"))
    assert (report["rows"], report["rows_written"]) == (0, 0)
    assert contents(restored(fill(make_mix(mix)), tmp_path / "saved")) == ({}, 0)


def test_a_snapshot_is_of_the_moment_when_it_was_begun(make_mix, mix, tmp_path):
    store = fill(make_mix(mix))
    expected = contents(store)
    store.begin_save(str(tmp_path / "saved"), str(tmp_path / "scratch"))
    assert not (tmp_path / "saved").exists()
    for step in range(5):
        train(store, np.arange(-1200, 1200), seed=step)
    store.remove(tf.range(0, 100, dtype=tf.int64), FEATURES)
    after = contents(store)
    store.finish_save()
    assert contents(store) == after
    assert contents(restored(make_mix(mix), tmp_path / "saved")) == expected


def test_features_are_renumbered_as_told(make_mix, tmp_path):
    store = fill(make_mix("ram"))
    store.save(str(tmp_path / "saved"))
    rows, step = contents(store)
    other = make_mix("ram", feature_seeds=(1, 2, 3))
    restored(other, tmp_path / "saved", features=(2, 0))
    swapped = {((2, 0)[feature], id_): row for (feature, id_), row in rows.items()}
    assert contents(other) == (swapped, step)


def test_new_ids_start_as_they_would_have_there(make_mix, mix, tmp_path):
    store = fill(make_mix(mix, feature_seeds=(2**64 - 7, 8)))
    store.save(str(tmp_path / "saved"))
    other = make_mix(mix, feature_seeds=(1, 2))
    unseen = tf.range(10_000, 10_100, dtype=tf.int64)
    expected, _ = store.lookup(unseen, FEATURES)
    seeds = (2**64 - 7, 8)
    rows, _ = restored(other, tmp_path / "saved", seeds=seeds).lookup(unseen, FEATURES)
    np.testing.assert_array_equal(rows, expected)
    stays, _ = restored(make_mix(mix), tmp_path / "saved").lookup(unseen, FEATURES)
    assert not np.any(np.all(stays == expected, axis=1))


# Incremental.


def test_only_changed_rows_are_written(make_mix, mix, tmp_path):
    store = make_mix(mix)
    train(store, np.arange(2000))
    # What was evicted stands on disk already.
    in_memory = store.stats()["rows"]
    first = store.save(str(tmp_path / "0"))
    assert (first["rows"], first["rows_written"]) == (2000, in_memory)
    train(store, np.arange(50))
    second = store.save(str(tmp_path / "1"))
    assert second["rows"] == 2000
    assert second["rows_written"] == 50 or MIXES[mix] is not None
    assert second["rows_written"] <= 50
    third = store.save(str(tmp_path / "2"))
    assert (third["rows"], third["rows_written"]) == (2000, 0)
    assert third["linked_bytes"] == third["bytes"]


def test_older_snapshots_may_be_deleted(make_mix, mix, tmp_path):
    store = make_mix(mix)
    expected = {}
    for number in range(6):
        train(store, np.arange(300 * number, 300 * number + 1000), seed=number)
        store.save(str(tmp_path / str(number)))
        expected[number] = contents(store)
        if number >= 2:
            shutil.rmtree(tmp_path / str(number - 2))
    for number in (4, 5):
        directory = tmp_path / str(number)
        assert find_damage(str(directory)) == []
        assert contents(restored(make_mix(mix), directory)) == expected[number]
    # The store that wrote them may be gone as well.
    del store
    assert find_damage(str(tmp_path / "5")) == []


def test_removed_rows_do_not_come_back(make_mix, mix, tmp_path):
    store = make_mix(mix)
    train(store, np.arange(1000))
    store.save(str(tmp_path / "0"))
    store.remove(tf.range(0, 500, dtype=tf.int64), FEATURES)
    store.save(str(tmp_path / "1"))
    expected = contents(store)
    assert len(expected[0]) == 500
    assert contents(restored(make_mix(mix), tmp_path / "1")) == expected
    assert len(contents(restored(make_mix(mix), tmp_path / "0"))[0]) == 1000


# What a snapshot says.


def test_a_snapshot_tells_what_it_holds(make_mix, mix, tmp_path):
    store = fill(make_mix(mix))
    directory = tmp_path / "saved"
    report = store.save(str(directory), metadata='{"any": "text, ü"}')
    info = read_info(str(directory))
    assert (info.metadata, info.step) == ('{"any": "text, ü"}', 10)
    assert (info.dim, info.num_slot_floats) == (DIM, DIM)
    assert info.rows == report["rows"] == store.stats()["known_rows"]
    assert sum(file.live_rows for file in info.files) == info.rows
    assert all(file.live_rows <= file.rows for file in info.files)
    assert info.bytes == report["bytes"]
    for file in info.files:
        assert (directory / file.name).stat().st_size >= file.bytes


def test_a_directory_without_a_snapshot_is_no_snapshot(tmp_path):
    with pytest.raises(tf.errors.UnavailableError, match=re.escape(str(tmp_path))):
        read_info(str(tmp_path))
    assert [str(tmp_path) in line for line in find_damage(str(tmp_path))] == [True]


def test_the_scratch_space_is_gone_with_the_store(make_mix, tmp_path):
    store = fill(make_mix("ssd, nothing in ram"))
    store.save(str(tmp_path / "saved"))
    assert list((tmp_path / "ssd").iterdir())
    del store
    assert not [path for path in (tmp_path / "ssd").iterdir() if path.is_dir()]


def test_to_begin_another_gives_up_what_was_begun(make_mix, tmp_path):
    store = fill(make_mix("ram"))
    store.begin_save(str(tmp_path / "first"))
    train(store, [1, 2])
    store.begin_save(str(tmp_path / "second"))
    expected = contents(store)
    store.finish_save()
    assert not list(tmp_path.glob("first*"))
    assert contents(restored(make_mix("ram"), tmp_path / "second")) == expected
