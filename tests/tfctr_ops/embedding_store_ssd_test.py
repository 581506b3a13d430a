"""Stores over SSD: their limits, and rows that are fetched early."""

import re

import numpy as np
import pytest
import tensorflow as tf

from helpers.snapshots import FEATURES, contents
from tfctr_ops import MemoryBudget


def refuses(error, message):
    return pytest.raises(error, match=re.escape(message))


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
