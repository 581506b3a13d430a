"""`HybridStorage`: its tiers; what all tables do stands in ../conformance_test.py."""

import numpy as np
import pytest
import tensorflow as tf

from keras_layers import CountAdmission, Expiry, TableConfig, TfraStorage, TieredStorage
from keras_layers.storage.storage import SavedTable
from tfctr_ops import SparseOptimizer

DIM, CAPACITY, SEEDS = 3, 16, (7,)
ANY_STEP, FEATURE = tf.constant(-1, tf.int64), tf.constant([0])


@pytest.fixture
def open_table(hybrid_storage):
    def open_table(cold=None, capacity=CAPACITY, tiers=True, **options):
        config = TableConfig("ads", DIM, SparseOptimizer("adam", 0.5), **options)
        cold = cold or TieredStorage()
        storage = hybrid_storage(capacity, cold=cold) if tiers else cold
        return storage.open(config, SEEDS)

    return open_table


def step(table, ids):
    ids = tf.convert_to_tensor(ids, tf.int64)
    _, ticket = table.lookup(ids, FEATURE, ANY_STEP)
    gradients = tf.cast(tf.stack([ids % 5, ids % 3, ids % 2], 1), tf.float32)
    return table.update(ticket, gradients - 1.0, 0.1)


def rows_of(table):
    """Rows by id: values, last step, count."""
    rows = table.save_rows()
    columns = (rows.values, rows.last_steps, rows.counts)
    of_each = zip(*(column.numpy().tolist() for column in columns), strict=True)
    return dict(zip(rows.ids.numpy().tolist(), of_each, strict=True))


def assert_same_rows(table, other):
    rows, others = rows_of(table), rows_of(other)
    assert rows.keys() == others.keys()
    for id_, (values, *counters) in rows.items():
        np.testing.assert_allclose(values, others[id_][0], rtol=1e-5, atol=1e-6)
        assert counters == list(others[id_][1:])


def batches(n=40, size=30):
    return np.random.default_rng(0).zipf(1.2, (n, size)) % 200


@pytest.mark.parametrize("capacity", [1, 16, 1000])
@pytest.mark.parametrize("in_graph", [False, True])
def test_no_update_is_lost_whatever_the_capacity(
    open_table, tmp_path, capacity, in_graph
):
    table = open_table(TieredStorage("2KB", tmp_path), capacity)
    alone = open_table(tiers=False)
    train = tf.function(lambda ids: step(table, ids)) if in_graph else None
    for ids in batches():
        ids = tf.constant(ids, tf.int64)
        train(ids) if in_graph else step(table, ids)
        step(alone, ids)
        stats = table.stats()
        assert stats["hot_rows"] <= capacity
        assert stats["known_rows"] == alone.size()
    assert stats["demoted_rows"] > 0 or capacity == 1000
    assert_same_rows(table, alone)


def test_rows_that_were_trained_last_stay_hot(open_table):
    table = open_table(capacity=8)
    for start in range(0, 24, 2):
        step(table, [start, start + 1])
    hot = table._tiers._hot.export()
    # An eighth leaves at once: seven stay, and the last batch comes on top.
    assert set(hot.ids.numpy()) >= set(range(18, 24)) and len(hot.ids) <= 8


def test_of_a_row_in_both_tiers_the_hot_one_is_right(open_table):
    table, alone = open_table(), open_table(tiers=False)
    for one in (table, alone):
        step(one, range(10))
        one.size()
        one.save_rows()  # Copies them down.
        step(one, range(5))
    ids = tf.range(12, dtype=tf.int64)
    np.testing.assert_allclose(
        table.read(ids, FEATURE), alone.read(ids, FEATURE), rtol=1e-5, atol=1e-6
    )
    assert int(table.remove(ids[:3], FEATURE)) == 3
    alone.remove(ids[:3], FEATURE)
    # Set by hand, with the last update of before the copy.
    for one in (table, alone):
        one.write(ids[3:7], FEATURE, tf.ones((4, DIM)))
    assert_same_rows(table, alone)


@pytest.mark.parametrize(
    "expiry", [Expiry(every=7, unused_steps=3), Expiry(every=4, max_rows=20)]
)
@pytest.mark.parametrize("in_graph", [False, True])
def test_rows_of_both_tiers_expire(open_table, expiry, in_graph):
    table = open_table(expiry=expiry)
    alone = open_table(tiers=False, expiry=expiry)
    train = tf.function(lambda ids: step(table, ids), reduce_retracing=True)
    for ids in batches():
        train(tf.constant(ids, tf.int64)) if in_graph else step(table, ids)
        step(alone, ids)
        assert table.stats()["known_rows"] == alone.size()
    assert table.stats()["expired_rows"] == alone.stats()["expired_rows"] > 0
    assert_same_rows(table, alone)


def test_a_snapshot_is_of_one_moment_and_writes_what_has_changed(open_table, tmp_path):
    table = open_table(TieredStorage("2KB", tmp_path / "ssd"))
    alone = open_table(tiers=False)
    reports = []
    for number, ids in enumerate([range(200), range(5), range(100, 103)]):
        for one in (table, alone):
            step(one, ids)
        table.begin_save(str(tmp_path / str(number)), str(tmp_path))
        saved = rows_of(alone)
        step(table, range(300))  # Not in the snapshot.
        reports.append(table.finish_save(""))
        for storage in (open_table(), open_table(tiers=False)):
            storage.restore(SavedTable([str(tmp_path / str(number))], [0], SEEDS))
            rows = rows_of(storage)
            assert rows.keys() == saved.keys()
            for id_, row in rows.items():
                np.testing.assert_allclose(row[0], saved[id_][0], rtol=1e-5, atol=1e-6)
            assert storage.stats()["step"] == number + 1
        table.restore(SavedTable([str(tmp_path / str(number))], [0], SEEDS))
    assert [report["rows"] for report in reports] == [200, 200, 200]
    # A snapshot after no change at all writes none.
    table.begin_save(str(tmp_path / "next"), str(tmp_path))
    table.finish_save("")
    step(table, [7])
    table.begin_save(str(tmp_path / "last"), str(tmp_path))
    assert table.finish_save("")["rows_written"] == 1


@pytest.mark.parametrize("in_graph", [False, True])
def test_nothing_moves_when_the_cold_tier_is_full(open_table, in_graph):
    table, alone = open_table(TieredStorage(ram=4000)), open_table(tiers=False)
    train = tf.function(lambda ids: step(table, ids), reduce_retracing=True)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Table 'ads' is full"):
        for start in range(0, 1000, 10):
            ids = tf.range(start, start + 10, dtype=tf.int64)
            train(ids) if in_graph else step(table, ids)
            step(alone, ids)
    # Again, which changes nothing either.
    with pytest.raises(tf.errors.ResourceExhaustedError):
        step(table, ids)
    assert table.size() == alone.size() == start
    assert table.stats()["step"] == alone.stats()["step"] == start // 10
    every = tf.range(1000, dtype=tf.int64)
    np.testing.assert_allclose(
        table.read(every, FEATURE), alone.read(every, FEATURE), rtol=1e-5, atol=1e-6
    )


def test_prefetch_brings_cold_rows_into_memory(open_table, tmp_path):
    table = open_table(TieredStorage("200KB", tmp_path), capacity=1)
    table.write(tf.range(20_000, dtype=tf.int64), FEATURE, tf.ones((20_000, DIM)))
    # After which nothing is left to be written: what is not in memory is on disk.
    table.begin_save(str(tmp_path / "saved"), str(tmp_path))
    table.finish_save("")

    def rows_read(act, ids):
        before = table.stats()["rows_read"]
        act(tf.constant(ids, tf.int64), FEATURE)
        return table.stats()["rows_read"] - before

    # Without those in memory: some might leave it to make room.
    cold = [id_ for id_ in range(200) if rows_read(table.read, [id_])]
    assert len(cold) > 100
    assert rows_read(table.prefetch, cold) == len(cold)
    assert rows_read(lambda *keys: table.lookup(*keys, ANY_STEP), cold) == 0


def test_a_capacity_must_be_one(hybrid_storage):
    for capacity in (0, 0.5):
        message = f"positive number of rows. Received: capacity={capacity}"
        with pytest.raises(ValueError, match=message):
            hybrid_storage(capacity)
    hot = TfraStorage("hkv", ["/CPU:0"], capacity=1000, hbm="1MB")
    hybrid_storage(600, hot)
    message = "HKV loses none of 600 rows at most.*capacity=601.*capacity=1002"
    with pytest.raises(ValueError, match=message):
        hybrid_storage(601, hot)


@pytest.mark.parametrize(
    "tiers, message",
    [
        ({"hot": TieredStorage()}, "`hot` must be a TfraStorage, or None. Received"),
        ({"cold": TfraStorage()}, "`cold` must be a TieredStorage, or None. Received"),
    ],
)
def test_tiers_must_be_what_they_are(hybrid_storage, tiers, message):
    with pytest.raises(TypeError, match=message):
        hybrid_storage(10, **tiers)


def test_a_cold_tier_must_lose_nothing(hybrid_storage):
    message = "must not lose rows. Received: .*eviction_policy='lru' and without `ssd`"
    with pytest.raises(ValueError, match=message):
        hybrid_storage(10, cold=TieredStorage("1MB", eviction_policy="lru"))


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_hot_tier_that_would_lose_rows_never_has_too_many(open_table, in_graph):
    table, alone = open_table(capacity=16), open_table(tiers=False)
    # As of HKV, which is not here: it loses rows beyond.
    table._tiers._most = most = 20
    hot, sizes = table._tiers._hot, []
    upsert = hot.upsert

    def watched(*arguments):
        upsert(*arguments)
        tf.py_function(lambda size: sizes.append(int(size)), [hot.size()], [])

    hot.upsert = watched
    train = tf.function(lambda ids: step(table, ids), reduce_retracing=True)
    # Batches of fewer rows, of as many, and of more.
    for size, ids in zip([5, 16, 20, 60, 3, 40, 18] * 3, batches(21, 80), strict=True):
        ids = np.unique(ids)[:size]
        train(tf.constant(ids, tf.int64)) if in_graph else step(table, ids)
        step(alone, ids)
    assert max(sizes) <= most and len(sizes) > 10
    assert_same_rows(table, alone)


def test_admission_is_refused(open_table):
    with pytest.raises(ValueError, match="HybridStorage has no admission"):
        open_table(admission=CountAdmission(2))


def test_the_forecast_is_of_both_tiers(hybrid_storage, open_table):
    config = TableConfig("ads", DIM, SparseOptimizer("adam", 0.5))
    forecast = hybrid_storage(1000).forecast(config, 10_000)
    cold = TieredStorage().forecast(config, 10_000)
    hot = TfraStorage(init_size=1000).forecast(config, 1000)
    assert forecast.ram_bytes == cold.ram_bytes + hot.ram_bytes
    assert forecast.row_bytes == cold.row_bytes
