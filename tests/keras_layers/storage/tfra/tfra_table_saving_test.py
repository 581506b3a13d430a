"""`TfraTable`: rows that expire, are saved, and come back."""

import numpy as np
import pytest
import tensorflow as tf

from helpers.table_steps import ANY_STEP, SEEDS, assert_same_rows, keys, step
from keras_layers import Expiry, TieredStorage
from keras_layers.storage.storage import SavedTable
from keras_layers.storage.tfra.fused_rows import to_ids, to_words
from tfctr_ops import SparseOptimizer


@pytest.mark.parametrize(
    "expiry",
    [
        Expiry(every=3, unused_steps=1),
        Expiry(every=2, min_norm=0.8),
        Expiry(every=2, max_rows=9),
        Expiry(every=1, max_rows=7, unused_steps=2, min_norm=0.4),
    ],
)
def test_rows_expire_as_in_the_store(pair, expiry):
    tables = pair(expiry=expiry, optimizer=SparseOptimizer("adagrad", 0.5))
    for number in range(7):
        for table in tables:
            step(table, *keys(number, n=8), seed=number)
        assert_same_rows(*tables)
    assert tables[0].expire() == tables[1].expire()
    assert_same_rows(*tables)
    told = [table.stats()["expired_rows"] for table in tables]
    assert told[0] == told[1] > 0


def test_rows_expire_inside_a_function(pair):
    tables = pair(expiry=Expiry(every=2, max_rows=9))
    for table in tables:

        @tf.function
        def train(ids, features, table=table):
            rows, ticket = table.lookup(ids, features, ANY_STEP)
            return table.update(ticket, rows + 1.0, tf.constant(0.5))

        for number in range(4):
            train(*keys(number))
    assert tables[0].size() == 9
    assert_same_rows(*tables)


def test_without_a_rule_nothing_expires(open_table):
    with pytest.raises(tf.errors.FailedPreconditionError, match="without a rule"):
        open_table().expire()


def test_snapshots_pass_from_storage_to_storage(pair, tmp_path):
    for number, (table, other) in enumerate((pair(), pair()[::-1])):
        step(table, *keys())
        path = str(tmp_path / str(number))
        table.begin_save(path, str(tmp_path))
        step(other, *keys(2))
        saved = table.save_rows()
        step(table, *keys(1))  # Not in the snapshot.
        assert table.finish_save("")["rows"] == len(saved.ids)
        # Features change places, and bring their seeds.
        other.restore(SavedTable([path], features=[1, 0], seeds=SEEDS[::-1]))
        assert other.stats()["step"] == 1
        table.restore_rows(saved, step=1)
        ids, features = keys(5)
        swapped = tf.where(features < 0, features, 1 - features)
        for one, its_features in ((table, features), (other, swapped)):
            step(one, ids, its_features)
        unseen = tf.constant([12345], tf.int64)
        rows = [
            one.lookup(unseen, tf.constant([feature]), ANY_STEP)[0]
            for one, feature in ((table, 0), (other, 1))
        ]
        np.testing.assert_allclose(*rows, rtol=0, atol=1e-6)
        np.testing.assert_allclose(
            table.read(ids, features), other.read(ids, swapped), rtol=1e-5, atol=1e-6
        )


def test_owners_share_a_snapshot(open_table, tmp_path):
    table = open_table()
    step(table, *keys())
    path = str(tmp_path / "saved")
    table.begin_save(path, str(tmp_path))
    table.finish_save("")
    owners = [open_table() for _ in range(2)]
    for owner, part in enumerate(owners):
        part.restore(SavedTable([path], [0, 1], SEEDS, owner, num_owners=2))
    assert sum(part.size() for part in owners) == table.size()
    assert all(part.size() > 0 for part in owners)


@pytest.mark.parametrize(
    "column, value",
    [("features", 2), ("values", np.nan), ("last_steps", 2), ("counts", -1)],
)
def test_rows_that_no_table_gives_are_refused(open_table, column, value):
    table = open_table()
    step(table, *keys())
    rows = table.save_rows()
    bad = tf.fill(tf.shape(getattr(rows, column)), value)
    bad = tf.cast(bad, getattr(rows, column).dtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match="as it was"):
        table.restore_rows(rows._replace(**{column: bad}), step=1)
    assert table.size() == len(rows.ids)
    assert step(table, *keys()) == 2


def test_a_snapshot_must_be_begun(open_table):
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="no snapshot to finish"
    ):
        open_table().finish_save("")


def test_a_snapshot_whose_keys_meet_is_refused(open_table):
    table = open_table()
    ids = tf.constant([5, 0], tf.int64)
    twin = to_ids(to_words(ids[:1], tf.constant([0])), tf.constant([1]))
    saved = open_table(TieredStorage())
    step(saved, tf.concat([ids[:1], twin], 0), tf.constant([0, 1]))
    message = (
        "room for 1 of these rows: the keys of others are the same there. Received: 2"
    )
    with pytest.raises(ValueError, match=message):
        table.restore_rows(saved.save_rows(), 1)
