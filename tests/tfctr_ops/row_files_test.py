"""Row files: ids and weights as two flat files, which NumPy reads and writes too."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import library

FEATURE = tf.constant([0])


def write(store, prefix, **attributes):
    library.load().tfctr_embedding_store_write_row_files(
        store._handle, str(prefix), **attributes
    )


def read(store, *prefixes, **attributes):
    library.load().tfctr_embedding_store_read_row_files(
        store._handle, [str(prefix) for prefix in prefixes], **attributes
    )


def put(prefix, keys, values):
    np.array(keys, np.int64).tofile(f"{prefix}-keys")
    values.tofile(f"{prefix}-values")


def test_files_hold_all_rows_also_those_on_disk(make_store, tmp_path):
    store = make_store(
        limit_bytes=4096, eviction_policy="clock", ssd_directory=str(tmp_path / "ssd")
    )
    # More than a part that is written at once.
    n = 20_000
    ids, rows = np.arange(n) - 7, np.random.default_rng(0).normal(size=(n, 2))
    store.write(tf.constant(ids), FEATURE, tf.constant(rows, tf.float32))
    write(store, tmp_path / "new" / "rows")
    keys = np.fromfile(tmp_path / "new" / "rows-keys", np.int64)
    values = np.fromfile(tmp_path / "new" / "rows-values", np.float32).reshape(-1, 2)
    order = np.argsort(keys)
    np.testing.assert_array_equal(keys[order], ids)
    np.testing.assert_array_equal(values[order], rows.astype(np.float32))
    copy = make_store()
    copy.write(tf.constant([10**6], tf.int64), FEATURE, [[1.0, 1.0]])
    read(copy, tmp_path / "new" / "rows")
    found = copy.read(tf.constant(ids), FEATURE)
    np.testing.assert_array_equal(found, rows.astype(np.float32))
    assert copy.stats()["known_rows"] == n


def test_a_file_is_replaced_or_appended_to(make_store, tmp_path):
    for row, append in ((1.0, False), (2.0, False), (3.0, True)):
        store = make_store()
        store.write(tf.constant([5], tf.int64), FEATURE, [[row, row]])
        write(store, tmp_path / "rows", append=append)
    values = np.fromfile(tmp_path / "rows-values", np.float32)
    assert values.tolist() == [2.0, 2.0, 3.0, 3.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rows-keys",
        "rows-values",
    ]
    read(store, tmp_path / "rows")
    assert store.read(tf.constant([5], tf.int64), FEATURE).numpy().tolist() == [[3, 3]]


def test_an_int32_is_two_weights(make_store, tmp_path):
    numbers = np.array([0, -1, 2**31 - 1, -(2**31), 65536], np.int32)
    put(tmp_path / "a", [1, 2, 3, 4, 5], numbers)
    store = make_store()
    read(store, tmp_path / "a", values="int32")
    rows = store.read(tf.range(1, 6, dtype=tf.int64), FEATURE).numpy()
    assert rows.tolist() == np.frombuffer(numbers, np.uint16).reshape(5, 2).tolist()
    write(store, tmp_path / "b", values="int32")
    keys = np.fromfile(tmp_path / "b-keys", np.int64)
    written = np.fromfile(tmp_path / "b-values", np.int32)
    np.testing.assert_array_equal(written[np.argsort(keys)], numbers)


def test_files_of_another_width_are_refused_and_change_nothing(make_store, tmp_path):
    put(tmp_path / "good", [1], np.ones(2, np.float32))
    put(tmp_path / "bad", [2], np.ones(3, np.float32))
    store = make_store()
    store.write(tf.constant([5], tf.int64), FEATURE, [[1.0, 1.0]])
    message = (
        "Table 'users' expects files of whole rows: 8 bytes of key, 8 bytes of values. "
        f"Received: '{tmp_path}/bad-keys' of 8 bytes and '{tmp_path}/bad-values' of 12."
        " The table is as it was."
    )
    with pytest.raises(tf.errors.DataLossError, match=re.escape(message)):
        read(store, tmp_path / "good", tmp_path / "bad")
    assert store.export_rows().ids.numpy().tolist() == [5]


def test_files_that_are_missing_are_named(make_store, tmp_path):
    with pytest.raises(tf.errors.NotFoundError, match="none-keys"):
        read(make_store(), tmp_path / "none")
