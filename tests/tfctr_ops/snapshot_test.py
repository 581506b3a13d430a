"""Snapshots: what was saved comes back to the bit, and damage is found.

The oracle is `export_rows`, which knows nothing of files.
"""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import (
    MemoryBudget,
    RowInitializer,
    SparseOptimizer,
    find_damage,
    read_info,
)

FEATURES = tf.constant([0, 1])
DIM = 3
# Bytes in memory; the rest is on disk. About 2000 rows of 56 bytes.
MIXES = {
    "ram": None,
    "ssd, a tenth in ram": 10_000,
    "ssd, nothing in ram": 0,
    "ssd, all in ram": 10_000_000,
}


@pytest.fixture
def make_mix(make_store, tmp_path):
    """Makes a store whose rows differ in every bit, in one of MIXES."""

    def make(mix, **options):
        options = {
            "dim": DIM,
            "optimizer": SparseOptimizer("adagrad", learning_rate=0.1),
            "initializer": RowInitializer("uniform", 0.0, 0.5),
            **options,
        }
        if MIXES[mix] is not None:
            ssd = str(tmp_path / "ssd")
            options |= {
                "limit_bytes": MIXES[mix],
                "eviction_policy": "clock",
                "ssd_directory": ssd,
            }
        return make_store(**options)

    return make


@pytest.fixture(params=MIXES)
def mix(request):
    return request.param


def train(store, ids, seed=0):
    """One update of the ids, of both features in turn."""
    rng = np.random.default_rng(seed)
    _, ticket = store.lookup(tf.constant(ids, tf.int64), FEATURES)
    gradients = rng.normal(size=(len(ids), DIM)).astype("float32")
    store.update(ticket, gradients, 0.1)


def fill(store, steps=10):
    rng = np.random.default_rng(1)
    for step in range(steps):
        train(store, rng.integers(-1000, 1000, 500), seed=step)
    store.write(tf.constant([2**63 - 1, -(2**63)]), FEATURES, tf.ones((2, DIM)))
    return store


def contents(store):
    """All rows by key, to the bit, and the step."""
    rows = store.export_rows()
    columns = [column.numpy() for column in rows]
    found = {
        (int(feature), int(id_)): (values.tobytes(), int(last), int(count))
        for id_, feature, values, last, count in zip(*columns, strict=True)
    }
    assert len(found) == len(columns[0])
    return found, store.stats()["step"]


def restored(store, directory, features=(0, 1), seeds=()):
    store.restore(str(directory), features, seeds)
    return store


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


# The configuration of the tier.


def test_a_store_over_ssd_evicts(make_store, tmp_path):
    message = (
        "With an `ssd_directory`, `eviction_policy` says which rows go there. "
        "Received: eviction_policy='none'. Say 'clock'."
    )
    with refuses(ValueError, message):
        make_store(ssd_directory=str(tmp_path))


def test_a_limit_that_is_too_low_names_the_least(make_store, tmp_path):
    options = {"eviction_policy": "clock", "ssd_directory": str(tmp_path)}
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"Table 'users' needs an `ssd_limit` of at least \d+ bytes. "
        r"Received: ssd_limit=1000\.",
    ) as error:
        make_store(limit_bytes=0, ssd_limit_bytes=1000, **options)
    least = int(re.search(r"at least (\d+) bytes", str(error.value))[1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="needs an `ssd_limit`"):
        make_store(limit_bytes=0, ssd_limit_bytes=least - 1, **options)
    train_two = make_store(limit_bytes=0, ssd_limit_bytes=least, **options)
    train_two.write(tf.range(64, dtype=tf.int64), FEATURES, tf.ones((64, 2)))
    np.testing.assert_array_equal(
        train_two.read(tf.range(64, dtype=tf.int64), FEATURES), np.ones((64, 2))
    )


def least_limit(make_store, **options):
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        make_store(limit_bytes=0, ssd_limit_bytes=0, **options)
    return int(re.search(r"at least (\d+) bytes", str(error.value))[1])


def test_a_full_disk_is_an_error_that_loses_nothing(make_store, tmp_path):
    dim = 256
    options = {"dim": dim, "eviction_policy": "clock", "ssd_directory": str(tmp_path)}
    limit = least_limit(make_store, **options)
    store = make_store(limit_bytes=0, ssd_limit_bytes=limit, **options)
    first = 0
    with pytest.raises(
        tf.errors.ResourceExhaustedError,
        match=rf"Table 'users' is full: ssd_limit={limit} bytes are used up in "
        rf"'{tmp_path}'. No row was lost.",
    ):
        for first in range(0, 2 * limit // (4 * dim), 2000):
            ids = tf.range(first, first + 2000, dtype=tf.int64)
            store.write(ids, FEATURES, tf.fill((2000, dim), 3.0))
    ids = tf.range(0, first, dtype=tf.int64)
    assert (store.read(ids, FEATURES).numpy() == 3.0).all()


@pytest.mark.parametrize("direct_reads", [False, True])
def test_prefetched_rows_need_no_reading_in_the_step(
    make_store, tmp_path, direct_reads
):
    dim = 64
    store = make_store(
        dim=dim,
        budget=MemoryBudget(4000 * 280),
        eviction_policy="clock",
        ssd_directory=str(tmp_path),
        direct_reads=direct_reads,
    )
    for first in range(0, 40_000, 1000):
        ids = tf.range(first, first + 1000, dtype=tf.int64)
        store.write(ids, FEATURES, tf.fill((1000, dim), float(first)))
    ids = tf.range(0, 1000, dtype=tf.int64)
    before = contents(store)
    read = store.stats()["rows_read"]
    store.prefetch(ids, FEATURES)
    after = store.stats()["rows_read"]
    assert after > read
    rows, _ = store.lookup(ids, FEATURES)
    np.testing.assert_array_equal(rows, np.zeros((1000, dim)))
    assert store.stats()["rows_read"] == after
    assert contents(store) == before
    # Ids that nobody knows bring nothing up, and make no rows.
    store.prefetch(ids + 1_000_000, FEATURES)
    assert contents(store) == before


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
