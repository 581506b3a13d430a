"""Budgets, eviction, threads and arguments of `TieredStorage`."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr_ops import SparseOptimizer

DIM = 4
ROW_BYTES = 24 + 4 * DIM  # A header and the weights; SGD has no slots.
SGD = SparseOptimizer("sgd", learning_rate=0.5)


def config(name="ads", **options):
    return TableConfig(name, dim=DIM, **{"optimizer": SGD, **options})


def open_table(storage, name="ads", **options):
    return storage.open(config(name, initializer="ones", **options), [1])


def step(table, ids):
    ids = tf.constant(ids, tf.int64)
    rows, ticket = table.lookup(ids, tf.constant([0]), tf.constant(-1, tf.int64))
    table.update(ticket, tf.ones_like(rows), 0.5)
    return rows.numpy()


def read(table, ids):
    return table.read(tf.constant(ids, tf.int64), tf.constant([0])).numpy()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"ram": 0}, "`ram` must be a positive number of bytes, such as 4000000000,"),
        ({"ram": "much"}, "Received: ram='much'."),
        ({"ram": -5}, "Received: ram=-5."),
        (
            {"eviction_policy": "random"},
            "`eviction_policy` must be one of 'none', 'clock', 'lru', 'lfu'. Received: "
            "eviction_policy='random'.",
        ),
        (
            {"ssd_limit": "1GB"},
            "`ssd_limit` and `direct_reads` go with `ssd`, the directory. Received: "
            "ssd=None, ssd_limit='1GB', direct_reads=False.",
        ),
        (
            {"ssd": "d"},
            "With `ssd`, `ram` must say how many bytes of rows stay in memory: without "
            "a limit, none would ever leave. Received: ram=None.",
        ),
        (
            {"ram": 1, "ssd": "d", "eviction_policy": "none"},
            "With `ssd`, `eviction_policy` says which rows go there. Received: "
            "eviction_policy='none'. Leave it out, or say 'clock'.",
        ),
        (
            {"num_threads": -1},
            "`num_threads` must be an integer of 0 or more. Received: num_threads=-1.",
        ),
        (
            {"numa_node": -1},
            "`numa_node` must be the number of a NUMA node, or None. "
            "Received: numa_node=-1.",
        ),
        ({"numa_node": "0"}, "Received: numa_node='0'."),
        ({"numa_node": 2**70}, f"or None. Received: numa_node={2**70}."),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TieredStorage(**options)


def test_the_configuration_holds_every_argument():
    options = {
        "ram": "1GB",
        "ssd": "/nvme/tables",
        "ssd_limit": "20GB",
        "eviction_policy": "clock",
        "direct_reads": True,
        "num_threads": 2,
        "numa_node": 1,
    }
    assert TieredStorage(**options).get_config() == options
    assert TieredStorage().get_config() == {
        "ram": None,
        "ssd": None,
        "ssd_limit": None,
        "eviction_policy": None,
        "direct_reads": False,
        "num_threads": 0,
        "numa_node": None,
    }
    assert TieredStorage().describe() == "ram"
    assert TieredStorage(**options).describe() == "ram_ssd"


# A full budget.


def test_a_full_budget_is_an_error_with_remedies_and_inserts_nothing():
    table = open_table(TieredStorage(ram=100 * ROW_BYTES))
    step(table, range(90))
    message = (
        f"Table 'ads' is full: the budget of ram={100 * ROW_BYTES} bytes is used up by "
        f"rows of {ROW_BYTES} bytes, and this batch has 15 new keys more than fit. "
        "Nothing was inserted. Possible fixes: 1) raise `ram` to "
        f"{115 * ROW_BYTES} bytes or more; 2) let rows leave with "
        "eviction_policy='clock'; 3) lower `dim` or choose an optimizer with fewer "
        "slots."
    )
    with pytest.raises(tf.errors.ResourceExhaustedError, match=re.escape(message)):
        step(table, [5, *range(90, 115)])
    stats = table.stats()
    assert (stats["rows"], stats["known_rows"], stats["step"]) == (90, 90, 1)
    step(table, range(100))  # What fits, still does.
    assert table.size() == 100


def test_the_first_remedy_is_just_enough():
    table = open_table(TieredStorage(ram=115 * ROW_BYTES))
    step(table, range(90))
    step(table, [5, *range(90, 115)])
    assert table.size() == 115


def test_a_full_budget_stops_fit_and_names_the_table():
    storage = TieredStorage(ram=2 * ROW_BYTES)
    inputs = keras.Input((3,), dtype="int64")
    layer = DynamicEmbedding(config("clicks"), storage)
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mean_squared_error")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Table 'clicks' is fu"):
        model.fit(np.array([[1, 2, 3]]), np.zeros((1, 3, DIM)), verbose=0)
    assert layer.stats()["clicks"]["rows"] == 0
    # Reading inserts nothing.
    assert model.predict(np.array([[7, 8, 9]]), verbose=0).shape == (1, 3, DIM)


def test_writing_and_restoring_keep_to_the_budget():
    full, small = open_table(TieredStorage()), TieredStorage(ram=10 * ROW_BYTES)
    step(full, range(11))
    table = open_table(small)
    step(table, range(3))
    ids, message = tf.range(11, dtype=tf.int64), rf"'ads' .* ram={10 * ROW_BYTES} bytes"
    with pytest.raises(tf.errors.ResourceExhaustedError, match=message):
        table.write(ids, tf.constant([0]), tf.zeros((11, DIM)))
    with pytest.raises(tf.errors.ResourceExhaustedError, match=message):
        table.restore_rows(full.save_rows(), step=1)
    assert (table.size(), table.stats()["step"]) == (3, 1)
    np.testing.assert_array_equal(read(table, [2]), [[0.5] * DIM])


def test_removed_rows_and_lost_tables_give_their_bytes_back():
    storage = TieredStorage(ram=10 * ROW_BYTES)
    table = open_table(storage)
    step(table, range(10))
    table.remove(tf.constant([3, 4], tf.int64), tf.constant([0]))
    step(table, [20, 21])
    del table
    step(open_table(storage), range(10))


# One budget.


def test_tables_of_one_storage_share_its_budget():
    storage = TieredStorage(ram=100 * ROW_BYTES)
    one, other = open_table(storage, "one"), open_table(storage, "other")
    step(one, range(60))
    step(other, range(40))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Table 'other' is full"):
        step(other, [40])
    step(open_table(TieredStorage(ram=100 * ROW_BYTES)), range(100))


def test_layers_of_one_storage_share_its_budget():
    storage = TieredStorage(ram=100 * ROW_BYTES)
    one, other = (
        DynamicEmbedding(FeatureConfig(config(name)), storage) for name in ("a", "b")
    )
    one(np.arange(60), training=True)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Table 'b' is full"):
        other(np.arange(60), training=True)
    other(np.arange(40), training=True)


# Eviction.


def test_eviction_keeps_to_the_budget_and_is_counted():
    table = open_table(TieredStorage(ram=1000 * ROW_BYTES, eviction_policy="clock"))
    for start in range(0, 5000, 100):
        step(table, range(start, start + 100))
    stats = table.stats()
    assert 900 <= stats["rows"] <= 1000
    assert stats["rows"] + stats["evicted_rows"] == 5000
    assert stats["step"] == 50


def test_an_evicted_key_has_lost_what_it_learned():
    table = open_table(TieredStorage(ram=64 * ROW_BYTES, eviction_policy="clock"))
    step(table, [7])
    np.testing.assert_array_equal(read(table, [7]), [[0.5] * DIM])
    for start in range(100, 1100, 10):
        step(table, range(start, start + 10))
    np.testing.assert_array_equal(read(table, [7]), [[0.0] * DIM])
    np.testing.assert_array_equal(step(table, [7]), [[1.0] * DIM])


def test_keys_in_use_outlive_keys_seen_once():
    table = open_table(TieredStorage(ram=2000 * ROW_BYTES, eviction_policy="clock"))
    hot = np.arange(500)
    for number in range(40):
        step(table, [*hot, *range(10_000 + 200 * number, 10_200 + 200 * number)])
    # Each of 40 steps took a half from a one: those that stayed all along.
    stayed = (read(table, hot)[:, 0] == 1 - 40 * 0.5).mean()
    assert table.stats()["evicted_rows"] > 5000
    assert stayed > 0.95


def test_a_batch_beyond_the_budget_is_trained_all_the_same():
    table = open_table(TieredStorage(ram=64 * ROW_BYTES, eviction_policy="clock"))
    for _ in range(3):
        ids = np.arange(1000)
        step(table, ids)
    assert table.stats()["step"] == 3
    step(table, [5])
    assert table.stats()["rows"] <= 1000
    assert np.isfinite(read(table, range(1000))).all()


def test_eviction_is_the_same_in_every_run_and_for_every_number_of_threads():
    def run(num_threads):
        storage = TieredStorage(
            2000 * ROW_BYTES, eviction_policy="clock", num_threads=num_threads
        )
        table, rng = open_table(storage), np.random.default_rng(0)
        for _ in range(20):
            step(table, rng.zipf(1.1, size=4000) % 5000)
        rows = [np.asarray(column) for column in table.save_rows()]
        order = np.argsort(rows[0])
        return table.stats(), [column[order] for column in rows]

    stats, rows = run(num_threads=1)
    for num_threads in (1, 2, 4):
        other_stats, other_rows = run(num_threads)
        assert other_stats == stats
        for column, expected in zip(other_rows, rows, strict=True):
            np.testing.assert_array_equal(column, expected)


# The forecast.


@pytest.mark.parametrize(
    "optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"]
)
@pytest.mark.parametrize("num_keys", [20_000, 200_000])
def test_the_forecast_is_within_a_tenth(optimizer, num_keys):
    table_config = TableConfig("ads", dim=DIM, optimizer=SparseOptimizer(optimizer))
    storage = TieredStorage()
    table = storage.open(table_config, [1])
    rng = np.random.default_rng(0)
    ids = tf.constant(rng.integers(-(2**63), 2**63 - 1, size=num_keys))
    table.write(ids, tf.constant([0]), tf.zeros((num_keys, DIM)))
    stats, forecast = table.stats(), storage.forecast(table_config, num_keys)
    assert stats["known_rows"] == num_keys
    assert abs(forecast.ram_bytes / stats["memory_bytes"] - 1) < 0.1
    assert forecast.row_bytes == stats["row_bytes"]
    assert forecast.ssd_bytes == 0


@pytest.mark.parametrize(
    ("dim", "row_bytes", "rows_per_page", "page_bytes"),
    [(4, 40, 101, 4096), (600, 2424, 1, 4096), (1500, 6024, 1, 8192)],
)
def test_files_are_forecast_in_pages(
    tmp_path, dim, row_bytes, rows_per_page, page_bytes
):
    storage = TieredStorage(ram=row_bytes * 1000, ssd=tmp_path)
    config = TableConfig("ads", dim=dim, optimizer="sgd")
    assert storage.forecast(config, 1000).ssd_bytes == 0
    pages = -(-10_000 // rows_per_page)
    # Half of the copies may be stale.
    assert storage.forecast(config, 10_000).ssd_bytes == 2 * pages * page_bytes


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("num_keys", [20_000, 200_000])
def test_the_forecast_knows_the_lists_of_a_policy(policy, num_keys):
    ram = num_keys * ROW_BYTES
    storage = TieredStorage(ram=ram, eviction_policy=policy)
    table = open_table(storage)
    ids = tf.range(num_keys, dtype=tf.int64)
    table.write(ids, tf.constant([0]), tf.zeros((num_keys, DIM)))
    forecast = storage.forecast(config(), num_keys)
    memory_bytes = table.stats()["memory_bytes"]
    assert abs(forecast.ram_bytes / memory_bytes - 1) < 0.02
    without = TieredStorage(ram=ram).forecast(config(), num_keys)
    assert forecast.ram_bytes - without.ram_bytes >= 8 * num_keys


def test_consecutive_ids_need_what_scattered_ones_need():
    storage, num_keys = TieredStorage(), 200_000
    table = open_table(storage)
    ids = tf.range(num_keys, dtype=tf.int64)
    table.write(ids, tf.constant([0]), tf.zeros((num_keys, DIM)))
    forecast = storage.forecast(config(), num_keys)
    assert abs(forecast.ram_bytes / table.stats()["memory_bytes"] - 1) < 0.1
