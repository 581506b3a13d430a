"""Budgets of bytes: full, shared, and kept by eviction."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import MemoryBudget, SparseOptimizer

FEATURE = tf.constant([0])
ROW = 32  # Bytes of the rows of `make_store`: a header of 24 and two weights.


def keys(start, stop):
    return tf.range(start, stop, dtype=tf.int64)


def touch(store, ids):
    """Looks ids up and moves their rows by one each."""
    rows, ticket = store.lookup(ids, FEATURE)
    store.update(ticket, tf.ones_like(rows), 1.0)
    return rows


def is_full(message="is full"):
    return pytest.raises(tf.errors.ResourceExhaustedError, match=re.escape(message))


# Full.


def test_as_many_rows_fit_as_the_budget_pays_for(make_store):
    store = make_store(limit_bytes=10 * ROW + ROW - 1)
    touch(store, keys(0, 10))
    with is_full():
        store.lookup(keys(10, 11), FEATURE)
    assert store.stats()["rows"] == 10
    touch(store, keys(0, 10))  # Rows that are there need no room.


@pytest.mark.parametrize("used, batch", [(0, 14), (7, 8), (10, 3)])
def test_the_error_of_a_full_table_names_numbers_that_are_enough(
    make_store, used, batch
):
    store = make_store(limit_bytes=10 * ROW, table="ads")
    touch(store, keys(0, used))
    enough = (used + batch) * ROW
    # The batch has known keys and duplicates besides.
    ids = tf.concat([keys(0, used + batch), keys(5, used + batch)], 0)
    with is_full(
        "Table 'ads' is full: the budget of ram=320 bytes is used up by rows of 32 "
        f"bytes, and this batch has {used + batch - 10} new keys more than fit. "
        f"Nothing was inserted. Possible fixes: 1) raise `ram` to {enough} bytes or "
        "more; 2) let rows leave with eviction_policy='clock'; 3) lower `dim` or "
        "choose an optimizer with fewer slots."
    ):
        store.lookup(ids, FEATURE)
    assert store.stats()["rows"] == used
    touch(make_store(limit_bytes=enough), ids)


def test_writing_into_a_full_table_changes_nothing(make_store):
    store = make_store(limit_bytes=3 * ROW)
    touch(store, keys(0, 2))
    with is_full("has 1 new keys more than fit"):
        store.write(keys(0, 4), FEATURE, tf.fill((4, 2), 9.0))
    assert store.read(keys(0, 4), FEATURE).numpy().tolist() == [[0.0, 0.0]] * 4
    assert store.stats()["rows"] == 2
    store.write(keys(0, 3), FEATURE, tf.fill((3, 2), 9.0))
    assert store.read(keys(0, 3), FEATURE).numpy().tolist() == [[9.0, 9.0]] * 3


def test_reading_needs_no_room(make_store):
    store = make_store(limit_bytes=0, default_row=(5.0, 6.0))
    assert store.read(keys(0, 2), FEATURE).numpy().tolist() == [[5.0, 6.0]] * 2
    assert store.stats()["rows"] == 0


def test_removed_rows_make_room(make_store):
    store = make_store(limit_bytes=10 * ROW)
    for start in range(0, 100, 10):
        touch(store, keys(start, start + 10))
        assert int(store.remove(keys(start, start + 20), FEATURE)) == 10
    touch(store, keys(0, 10))


def test_imported_rows_take_the_room_of_those_they_replace(make_store):
    source = make_store()
    touch(source, keys(100, 110))
    store = make_store(limit_bytes=10 * ROW)
    touch(store, keys(0, 10))
    store.import_rows(source.export_rows(), step=1)
    assert store.stats()["rows"] == 10
    with is_full():
        store.lookup(keys(0, 1), FEATURE)


def test_without_a_limit_nothing_is_ever_full(make_store):
    budget = MemoryBudget()
    assert budget.limit_bytes is None
    store = make_store(budget=budget)
    touch(store, keys(0, 100_000))
    assert store.stats()["rows"] == 100_000


# Shared.


def test_stores_share_what_is_left_of_a_budget(make_store):
    budget = MemoryBudget(10 * ROW)
    first, second = make_store(budget=budget), make_store(budget=budget)
    touch(first, keys(0, 6))
    with is_full(f"raise `ram` to {11 * ROW} bytes or more"):
        second.lookup(keys(0, 5), FEATURE)
    touch(second, keys(0, 4))
    first.remove(keys(0, 1), FEATURE)
    touch(second, keys(4, 5))
    with is_full():
        first.lookup(keys(0, 1), FEATURE)


def test_stores_of_different_rows_share_a_budget_by_bytes(make_store):
    wide_row = make_store(dim=100).config.row_bytes
    budget = MemoryBudget(wide_row + 18 * ROW + ROW - 1)
    narrow, wide = make_store(budget=budget), make_store(budget=budget, dim=100)
    wide.lookup(keys(0, 1), FEATURE)
    touch(narrow, keys(0, 18))
    with is_full("rows of 32 bytes"):
        narrow.lookup(keys(18, 19), FEATURE)
    with is_full(f"rows of {wide_row} bytes"):
        wide.lookup(keys(1, 2), FEATURE)


# Eviction.


def test_eviction_keeps_a_store_within_its_budget(make_store):
    limit = 4096 * ROW
    store = make_store(limit_bytes=limit, eviction_policy="clock")
    for start in range(0, 40_000, 500):
        touch(store, keys(start, start + 500))
        stats = store.stats()
        assert stats["rows"] * ROW <= limit
        assert stats["rows"] + stats["evicted_rows"] == start + 500
    assert stats["rows"] == stats["known_rows"] == 4096
    assert len(store.export_rows().ids) == 4096


def test_an_evicted_key_reads_the_default_row_and_starts_anew(make_store):
    store = make_store(
        limit_bytes=64 * 48,
        eviction_policy="clock",
        default_row=(7.0, 7.0),
        optimizer=SparseOptimizer("adam", bias_correction="row"),
    )
    first = touch(store, keys(0, 20))
    for start in range(1000, 2000, 20):
        touch(store, keys(start, start + 20))
    assert store.stats()["evicted_rows"] > 900
    read = store.read(keys(0, 20), FEATURE).numpy()
    gone = keys(0, 20)[(read == 7.0).all(axis=1)]
    assert len(gone) > 10
    again = touch(store, gone)
    np.testing.assert_array_equal(again, first[: len(gone)])
    rows = store.export_rows()
    counts = dict(zip(rows.ids.numpy(), rows.counts.numpy(), strict=True))
    assert {counts[id_] for id_ in gone.numpy()} == {1}


def test_rows_that_are_used_stay(make_store):
    store = make_store(limit_bytes=4000 * ROW, eviction_policy="clock")
    hot = keys(0, 300)
    for start in range(1000, 20_000, 100):
        touch(store, hot)
        touch(store, keys(start, start + 100))
    assert store.stats()["evicted_rows"] > 15_000
    rows = store.export_rows()
    counts = dict(zip(rows.ids.numpy(), rows.counts.numpy(), strict=True))
    assert [counts.get(id_) for id_ in range(300)] == [190] * 300


def test_a_batch_larger_than_the_budget_is_right(make_store):
    store = make_store(limit_bytes=10 * ROW, eviction_policy="clock")
    ids = tf.tile(keys(0, 5000), [2])
    rows, ticket = store.lookup(ids, FEATURE)
    np.testing.assert_array_equal(rows, np.ones((10_000, 2)))
    store.update(ticket, tf.ones((10_000, 2)), 0.25)
    np.testing.assert_array_equal(store.read(ids, FEATURE), np.full((10_000, 2), 0.5))
    # What is above the budget leaves with the next batches.
    for start in range(10):
        touch(store, keys(start, start + 1))
    # Of a shard whose only row is in the batch, none can leave.
    assert store.stats()["rows"] <= 64


def test_no_gradient_is_lost_when_its_row_was_evicted(make_store):
    store = make_store(limit_bytes=100 * ROW, eviction_policy="clock")
    _, ticket = store.lookup(keys(0, 100), FEATURE)
    for start in range(1000, 3000, 100):
        store.lookup(keys(start, start + 100), FEATURE)
    assert store.stats()["evicted_rows"] >= 1900
    store.update(ticket, tf.reshape(tf.range(200.0), (100, 2)), 1.0)
    read = store.read(keys(0, 100), FEATURE).numpy()
    np.testing.assert_array_equal(read, 1 - np.arange(200.0).reshape(100, 2))


def test_eviction_does_not_depend_on_threads(make_store):
    exports = []
    for num_threads in (1, 2):
        store = make_store(
            limit_bytes=5000 * ROW, eviction_policy="clock", num_threads=num_threads
        )
        rng = np.random.default_rng(0)
        for _ in range(20):
            touch(store, tf.constant(rng.zipf(1.1, 4096) % 100_000))
        rows = store.export_rows()
        exports.append([column.numpy().tobytes() for column in rows])
    assert exports[0] == exports[1]
