"""`TfraTable`: what is its own; what all tables do stands in ../conformance_test.py."""

import gc
import itertools

import numpy as np
import pytest
import tensorflow as tf

from helpers.table_steps import ANY_STEP, DIM, assert_same_rows, keys, step
from keras_layers import CountAdmission, Expiry
from keras_layers.storage.tfra.fused_rows import to_ids, to_words
from keras_layers.storage.tfra.keyed_rows import DistinctKeys, whole_rows
from tfctr_ops import RowInitializer, SparseOptimizer

# Operations.


def count_calls(table, counts):
    """Counts what runs, in graphs too, on each of TFRA's operations."""
    variable = table._rows._rows._variable

    def counted(name, original):
        def call(*args, **kwargs):
            counts[name].assign_add(1)
            return original(*args, **kwargs)

        return call

    for name in counts:
        setattr(variable, name, counted(name, getattr(variable, name)))


def test_a_step_makes_one_find_and_one_insert(open_table):
    table = open_table(expiry=Expiry(every=100, max_rows=1000))
    counts = {name: tf.Variable(0) for name in ("lookup", "upsert")}
    count_calls(table, counts)

    @tf.function
    def train(ids, features):
        rows, ticket = table.lookup(ids, features, ANY_STEP)
        return table.update(ticket, rows + 1.0, tf.constant(0.5))

    for number in range(1, 11):
        assert train(*keys(number)) == number
    assert [int(count) for count in counts.values()] == [10, 10]
    graph = train.get_concrete_function(*keys()).graph
    kinds = [operation.type for operation in graph.get_operations()]
    # Outside of branches that are seldom taken.
    assert kinds.count("TFRA>CuckooHashTableFindWithExists") == 1
    assert kinds.count("TFRA>CuckooHashTableInsert") == 0


def test_a_dropped_lookup_costs_the_next_step_alone(open_table):
    table = open_table()
    counts = {name: tf.Variable(0) for name in ("lookup", "upsert")}
    count_calls(table, counts)
    table.lookup(*keys(), ANY_STEP)
    finds = []
    for number in range(1, 5):
        before = int(counts["lookup"])
        assert int(step(table, *keys(number))) == number
        finds.append(int(counts["lookup"]) - before)
    # The first waits for the second, which finds its rows once more.
    assert finds == [1, 2, 1, 1]


@pytest.mark.parametrize("n", [1, 50])
@pytest.mark.parametrize(
    "value, is_good",
    [(1e12, True), (-9.9e11, True), (1.01e12, False), (-3e38, False)]
    + [(np.inf, False), (np.nan, False), (1e-38, True)],
)
def test_a_gradient_is_bad_beyond_a_bound(pair, n, value, is_good):
    # Of each of them, whatever they are together.
    for table in pair(bad_gradients="skip"):
        _, ticket = table.lookup(*keys(n=n), ANY_STEP)
        assert table.update(ticket, tf.fill((n, DIM), value), 0.5) == is_good


@pytest.mark.parametrize("bad", ["raise", "skip"])
def test_a_bad_gradient_drops_its_whole_step(pair, bad):
    for table in pair(bad_gradients=bad):
        step(table, *keys())
        before = table.save_rows()
        tickets = [table.lookup(*keys(n), ANY_STEP)[1] for n in range(3)]
        good, nan = tf.ones((50, DIM)), tf.fill((50, DIM), np.nan)
        table.update(tickets[0], good, 0.5)
        if bad == "raise":
            with pytest.raises(tf.errors.InvalidArgumentError, match="update 2. No"):
                table.update(tickets[1], nan, 0.5)
        else:
            assert table.update(tickets[1], nan, 0.5) == 1
        table.update(tickets[2], good, 0.5)
        for column, expected in zip(table.save_rows(), before, strict=True):
            np.testing.assert_array_equal(column, expected)
        assert step(table, *keys()) == (3 if bad == "raise" else 2)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_a_step_may_be_interrupted_anywhere(pair, order):
    tables = pair()
    for table in tables:
        step(table, *keys())
        tickets = [table.lookup(*keys(n), ANY_STEP)[1] for n in range(3)]
        gradients = [tf.fill((50, DIM), 1.0 + n) for n in range(3)]
        first, second, third = order
        table.update(tickets[first], gradients[first], 0.5)
        table.lookup(*keys(7), ANY_STEP)  # And its ticket is dropped.
        assert table.update(tickets[second], gradients[second], 0.5) == 3
        table.write(*keys(9), tf.ones((50, DIM)))
        table.remove(*keys(8, 10))
        table.update(tickets[third], gradients[third], 0.5)
    assert_same_rows(*tables)
    for table in tables:
        step(table, *keys(3))
    assert_same_rows(*tables)


def test_gradients_of_before_a_restore_are_forgotten(pair):
    tables = pair()
    for table in tables:
        step(table, *keys())
        _, late = table.lookup(*keys(), ANY_STEP)
        table.restore_rows(table.save_rows(), step=5)
        _, ticket = table.lookup(*keys(), ANY_STEP)
        _, other = table.lookup(*keys(1), ANY_STEP)
        table.update(ticket, tf.ones((50, DIM)), 0.5)
        assert table.update(late, tf.ones((50, DIM)), 0.5) == 6
        assert table.update(other, tf.ones((50, DIM)), 0.5) == 6
    assert_same_rows(*tables)


@pytest.mark.parametrize("rate", [np.nan, -1.0, 1e7])
def test_a_bad_learning_rate_is_an_error(open_table, rate):
    table = open_table()
    with pytest.raises(tf.errors.InvalidArgumentError, match="rate of table 'ads'"):
        step(table, *keys(), rate=rate)
    assert table.size() == 0


def test_weights_that_are_not_finite_are_not_written(open_table):
    table = open_table()
    with pytest.raises(tf.errors.InvalidArgumentError, match="finite weights only"):
        table.write(*keys(), tf.fill((50, DIM), np.inf))
    assert table.size() == 0


def test_a_learning_rate_of_zero_moves_nothing_with_ftrl(pair):
    tables = pair(optimizer=SparseOptimizer("ftrl", l1=0.1))
    for table in tables:
        for rate in (0.0, 0.5, 0.0):
            step(table, *keys(), rate=rate)
    assert_same_rows(*tables)


# First rows.


@pytest.mark.parametrize("kind", ["constant", "uniform", "normal", "truncated_normal"])
def test_first_rows_are_those_of_the_store(pair, kind):
    law = RowInitializer(kind, 0.01, 1.0)
    rng = np.random.default_rng(0)
    # The first two have the ends of the unit interval, under some seed.
    ids = [
        1363879,
        4070040,
        -(2**63),
        2**63 - 1,
        -1,
        *rng.integers(-(2**62), 2**62, 999),
    ]
    ids, features = tf.constant(ids, tf.int64), tf.constant([0, 1])
    rows = [
        table.lookup(tf.repeat(ids, 2), features, ANY_STEP)[0]
        for table in pair(initializer=law)
    ]
    np.testing.assert_allclose(*rows, rtol=1e-6, atol=1e-6)
    assert np.isfinite(rows[0]).all()


# Keys.


def test_keys_that_meet_are_an_error(open_table):
    table = open_table()
    first = tf.constant([5], tf.int64)
    twin = to_ids(to_words(first, tf.constant([0])), tf.constant([1]))
    step(table, first, tf.constant([0]))
    reads = tf.function(lambda: table.read(twin, tf.constant([1])))
    for use in (
        lambda: table.lookup(twin, tf.constant([1]), ANY_STEP),
        lambda: reads(),
    ):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"Two ids of table \\?'ads\\?' have the same key",
        ):
            use()


# Whole tables.


def test_a_table_that_is_gone_leaves_nothing(open_table, redis_storage):
    for storage in (None, redis_storage()):
        table = open_table(storage)
        step(table, *keys())
        part = table._rows._rows._variable.tables[0]
        assert part.size() == table.size() > 0
        del table
        gc.collect()
        if storage is None:
            with pytest.raises(tf.errors.NotFoundError):
                part.size()


def test_a_first_size_beyond_the_memory_is_refused(open_table, tfra_storage):
    with pytest.raises(ValueError, match="memory of 1000000000000 rows at once"):
        open_table(tfra_storage(init_size=10**12))


def test_admission_is_refused(open_table):
    with pytest.raises(ValueError, match="TfraStorage has no admission.*Count"):
        open_table(admission=CountAdmission(2))
    table = open_table()
    table.restore_admission(table.save_admission(), [0])
    assert table.save_admission().dtype == np.uint8
    assert table.save_admission().size == 0


@pytest.mark.gpu
def test_a_full_table_on_a_gpu_counts_what_left(open_table, tfra_storage):
    capacity = 1024
    table = open_table(tfra_storage("hkv", capacity=capacity, hbm="1MB"))
    for start in range(0, 8 * capacity, 256):
        step(table, tf.range(start, start + 256, dtype=tf.int64), tf.constant([0]))
    stats = table.stats()
    assert stats["known_rows"] <= capacity
    assert stats["evicted_rows"] == 8 * capacity - stats["known_rows"]


def test_rows_that_left_by_themselves_are_counted(open_table, tfra_storage):
    table = open_table(tfra_storage("hkv", ["/CPU:0"], capacity=1000, hbm="1MB"))
    ids, features = tf.range(10, dtype=tf.int64), tf.zeros([10], tf.int32)
    step(table, ids, features)
    assert table.remove(ids[:2], features[:2]) == 2
    # As of a full table on a GPU.
    table._rows._rows.remove(DistinctKeys(ids[3:6], features[3:6]))
    stats = table.stats()
    assert (stats["known_rows"], stats["evicted_rows"], table.size()) == (5, 3, 5)


# Creators. The whole conformance of all but the first is a soak.


@pytest.fixture
def storages(tfra_storage):
    return {
        "devices": lambda _: tfra_storage(devices=["/CPU:0"] * 3),
        "hkv": lambda _: tfra_storage("hkv", ["/CPU:0"], capacity=10_000, hbm="1MB"),
        "redis": lambda request: request.getfixturevalue("redis_storage")(),
    }


@pytest.mark.parametrize("name", ["devices", "hkv", "redis"])
def test_every_creator_does_the_same(name, storages, pair, request):
    tables = pair(storages[name](request), expiry=Expiry(every=4, max_rows=15))
    for table in tables:
        train = tf.function(lambda *batch, table=table: step(table, *batch))
        for number in range(5):
            train(*keys(number))
        table.write(*keys(6, 5), tf.ones((5, DIM)))
        assert table.remove(*keys(9, 9)) > 0
        step(table, *keys(9))
    assert_same_rows(*tables)
    for table in tables:
        table.restore_rows(table.save_rows(), step=6)
        step(table, *keys(9))
    assert_same_rows(*tables)


def test_rows_are_found_by_their_distinct_keys(open_table):
    # What a storage over this one needs.
    rows = open_table()._rows._rows
    some = DistinctKeys(tf.constant([5, 6], tf.int64), tf.constant([0, 1]))
    values = tf.reshape(tf.range(2.0 * rows.num_floats), [2, -1])
    counters = tf.constant([1, 2]), tf.constant([3, 4])
    rows.upsert(some, whole_rows(some.features, [values], *counters))
    found = rows.find(DistinctKeys(tf.constant([6, 5], tf.int64), tf.constant([1, 1])))
    assert found.exists.numpy().tolist() == [True, False]
    np.testing.assert_array_equal(found.values[0, : rows.num_floats], values[1])
    assert (int(found.counts[0]), int(found.last_steps[0])) == (2, 4)
    rows.remove(DistinctKeys(some.ids[:1], some.features[:1]))
    assert rows.export().ids.numpy().tolist() == [6]
    rows.clear()
    assert rows.size() == 0


def test_a_probe_amid_a_step_ends_it(pair):
    # A bad gradient, a look at the table, then a good gradient of the same step.
    counts = []
    for table in pair(bad_gradients="skip"):
        ids, features = tf.constant([1], tf.int64), tf.constant([0])
        tickets = [table.lookup(ids, features, ANY_STEP)[1] for _ in range(2)]
        table.update(tickets[0], tf.fill([1, DIM], np.nan), 0.5)
        table.size()
        table.update(tickets[1], tf.ones([1, DIM]), 0.5)
        stats = table.stats()
        counts.append((stats["step"], stats["skipped_updates"], stats["known_rows"]))
    assert counts[0] == counts[1] == (1, 1, 1)
