"""Checks that hold for every storage. A new one is one new line in STORAGES.

The oracle is a dict from (feature, id) to a row, in float64, one key after the other.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import TableConfig, TieredStorage
from tfctr_ops import Rows, SparseOptimizer

# One line per storage and variant, made of fixtures. None of them loses rows here.
STORAGES = {
    "tiered": lambda fixture: TieredStorage(),
    "tiered, one thread, NUMA node 0": lambda fixture: TieredStorage(
        num_threads=1, numa_node=0
    ),
    "tiered, with a budget": lambda fixture: TieredStorage(ram="64MB"),
    "tiered, with clock eviction": lambda fixture: TieredStorage(
        "64MB", eviction_policy="clock"
    ),
    "tiered, over SSD": lambda fixture: TieredStorage("2KB", fixture("tmp_path")),
    "tiered, over SSD, direct reads": lambda fixture: TieredStorage(
        "2KB", fixture("tmp_path"), "8MB", direct_reads=True
    ),
    "tfra": lambda fixture: fixture("tfra_storage")(),
    "tfra, three devices": lambda fixture: fixture("tfra_storage")(
        devices=["/CPU:0"] * 3
    ),
    # HKV's kernels for CPUs.
    "tfra, HKV": lambda fixture: fixture("tfra_storage")(
        "hkv", ["/CPU:0"], capacity=100_000, hbm="16MB"
    ),
    "tfra, HKV on a GPU": lambda fixture: fixture("tfra_storage")(
        "hkv", capacity=100_000, hbm="16MB"
    ),
    "tfra, Redis": lambda fixture: fixture("redis_storage")(),
    # Of five hot rows, in a table that makes room with nearly every step.
    "hybrid": lambda fixture: fixture("hybrid_storage")(5),
    "hybrid, over SSD": lambda fixture: fixture("hybrid_storage")(
        5, cold=TieredStorage("2KB", fixture("tmp_path"))
    ),
    "hybrid, on a GPU": lambda fixture: fixture("hybrid_storage")(100),
}
# They differ from "tfra" in little, which tfra/tfra_table_test.py tries.
SLOW_STORAGES = ("tfra, three devices", "tfra, HKV", "tfra, Redis", "hybrid")
# One line per kind of update.
RULES = {
    "sgd": SparseOptimizer("sgd", learning_rate=0.5),
    "sgd, decayed": SparseOptimizer("sgd", learning_rate=0.5, weight_decay=0.25),
    "adagrad": SparseOptimizer("adagrad", learning_rate=0.5),
    "rowwise_adagrad": SparseOptimizer("rowwise_adagrad", learning_rate=0.5),
    "adam": SparseOptimizer("adam", learning_rate=0.5),
    "adam, per row": SparseOptimizer("adam", 0.5, bias_correction="row"),
    "adamw": SparseOptimizer("adam", learning_rate=0.5, weight_decay=0.25),
    "ftrl": SparseOptimizer("ftrl", 0.5, l1=0.01, l2=0.1, l2_shrinkage=0.1, beta=0.5),
}
DIM, SEEDS = 3, (11, 22, 33)
DEFAULT = (1.0, 2.0, 3.0)


def marks_of(name):
    if "GPU" in name:
        return [pytest.mark.gpu]
    return [pytest.mark.soak] if name in SLOW_STORAGES else []


@pytest.fixture(params=[pytest.param(name, marks=marks_of(name)) for name in STORAGES])
def storage(request):
    return STORAGES[request.param](request.getfixturevalue)


def open_table(storage, rule="adagrad", **options):
    options = {"default_row": DEFAULT, "initializer": "uniform", **options}
    config = TableConfig("ads", dim=DIM, optimizer=RULES[rule], **options)
    return storage.open(config, SEEDS)


def tensors(keys):
    """Ids and features of keys `(feature, id)`."""
    features, ids = zip(*keys, strict=True) if keys else ((), ())
    return tf.constant(ids, tf.int64), tf.constant(features, tf.int32)


def lookup(table, keys):
    return table.lookup(*tensors(keys), tf.constant(-1, tf.int64))


def step(table, keys, gradients, rate=0.5):
    _, ticket = lookup(table, keys)
    return int(table.update(ticket, tf.constant(gradients, tf.float32), rate))


def read(table, keys):
    return table.read(*tensors(keys)).numpy()


def some_keys(n, seed=0):
    """Keys with many duplicates, extreme ids among them."""
    pool = [-(2**63), -1, 0, 2**63 - 1]
    pool += np.random.default_rng(99).integers(-(2**62), 2**62, 40).tolist()
    rng = np.random.default_rng(seed)
    features = rng.integers(0, len(SEEDS), n).tolist()
    return [(feature, pool[rng.zipf(1.3) % len(pool)]) for feature in features]


def some_gradients(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, DIM)).astype("float32")


class Oracle:
    """What a table does, as a dict."""

    def __init__(self, rule, first_rows):
        self.rule, self.steps = RULES[rule], 0
        self.first_rows = first_rows
        self.rows = {}

    def step(self, keys, gradients, rate=0.5):
        self.steps += 1
        sums = {}
        for key, gradient in zip(keys, gradients, strict=True):
            if key[0] >= 0:
                sums[key] = sums.get(key, 0.0) + gradient.astype("float64")
        for key, gradient in sums.items():
            self.move(self.row(key), gradient, rate)

    def row(self, key):
        if key not in self.rows:
            weights = self.first_rows[key].astype("float64")
            self.rows[key] = {"w": weights, "count": 0}
        return self.rows[key]

    def move(self, row, g, rate):
        rule, w = self.rule, row["w"]
        row["count"] += 1
        row["last"] = self.steps
        w = w * (1 - rate * rule.weight_decay)
        start = rule.initial_accumulator_value
        if rule.kind == "sgd":
            w = w - rate * g
        elif rule.kind == "adagrad":
            row["a"] = row.get("a", start) + g**2
            w = w - rate * g / np.sqrt(row["a"] + rule.epsilon)
        elif rule.kind == "rowwise_adagrad":
            row["a"] = row.get("a", start) + np.mean(g**2)
            w = w - rate * g / np.sqrt(row["a"] + rule.epsilon)
        elif rule.kind == "adam":
            t = row["count"] if rule.bias_correction == "row" else self.steps
            row["m"] = rule.beta_1 * row.get("m", 0) + (1 - rule.beta_1) * g
            row["v"] = rule.beta_2 * row.get("v", 0) + (1 - rule.beta_2) * g**2
            m, v = row["m"] / (1 - rule.beta_1**t), row["v"] / (1 - rule.beta_2**t)
            # Keras adds epsilon to the root of v before the correction.
            epsilon = rule.epsilon / np.sqrt(1 - rule.beta_2**t)
            w = w - rate * m / (np.sqrt(v) + epsilon)
        else:
            n, power = row.get("n", start), -rule.learning_rate_power
            row["n"] = n + g**2
            pull = (row["n"] ** power - n**power) / rate
            row["z"] = row.get("z", 0.0) + g + 2 * rule.l2_shrinkage * w - pull * w
            z, scale = row["z"], row["n"] ** power / rate
            clipped = np.clip(z, -rule.l1, rule.l1)
            w = (clipped - z) / (scale + 2 * rule.l2 + rule.beta / rate)
        row["w"] = w

    def read(self, keys):
        known = {key: row["w"] for key, row in self.rows.items()}
        absent = np.zeros(DIM)
        return np.array(
            [known.get(key, DEFAULT) if key[0] >= 0 else absent for key in keys]
        ).reshape(-1, DIM)


def oracle_of(table, rule, keys):
    rows, _ = lookup(table, keys)
    return Oracle(rule, dict(zip(keys, rows.numpy(), strict=True)))


def sorted_rows(table):
    rows = [np.asarray(column) for column in table.save_rows()]
    order = np.lexsort((rows[0], rows[1]))
    return Rows(*(column[order] for column in rows))


def assert_equal_tables(table, other):
    for column, expected in zip(sorted_rows(table), sorted_rows(other), strict=True):
        np.testing.assert_array_equal(column, expected)


def assert_close_tables(table, other):
    for column, expected in zip(sorted_rows(table), sorted_rows(other), strict=True):
        np.testing.assert_allclose(column, expected, rtol=1e-5, atol=1e-6)


def assert_as(table, oracle, keys):
    np.testing.assert_allclose(
        read(table, keys), oracle.read(keys), rtol=1e-4, atol=1e-5
    )


# Reading.


def test_unknown_keys_read_the_default_row(storage):
    table = open_table(storage)
    np.testing.assert_array_equal(read(table, [(0, 5), (2, -1)]), [DEFAULT] * 2)
    assert table.stats()["rows"] == 0


def test_without_a_default_row_unknown_keys_read_zeros(storage):
    table = open_table(storage, default_row=None)
    np.testing.assert_array_equal(read(table, [(0, 5)]), np.zeros((1, DIM)))


def test_no_keys_read_no_rows(storage):
    assert read(open_table(storage), []).shape == (0, DIM)


def test_absent_keys_read_zeros_and_are_never_inserted(storage):
    table = open_table(storage)
    keys = [(-1, 5), (0, 5), (-1, 5)]
    rows, ticket = lookup(table, keys)
    np.testing.assert_array_equal(rows.numpy()[[0, 2]], np.zeros((2, DIM)))
    table.update(ticket, tf.ones((3, DIM)), 0.5)
    assert table.size() == 1
    np.testing.assert_array_equal(read(table, keys)[[0, 2]], np.zeros((2, DIM)))


def test_features_repeat(storage):
    table = open_table(storage)
    ids, features = tf.range(6, dtype=tf.int64), tf.constant([2, 0, 1])
    rows, _ = table.lookup(ids, features, tf.constant(-1, tf.int64))
    keys = list(zip([2, 0, 1, 2, 0, 1], range(6), strict=True))
    np.testing.assert_array_equal(rows, lookup(table, keys)[0])


def test_a_wrong_belief_about_the_step_is_an_error(storage):
    table, keys = open_table(storage), tensors([(0, 5)])
    step(table, [(0, 5)], np.ones((1, DIM)))
    for expected in (-1, 1):
        table.read(*keys, expected)
        table.lookup(*keys, tf.constant(expected, tf.int64))
    for expected in (0, 2):
        for use in (table.read, table.lookup):
            with pytest.raises(
                tf.errors.FailedPreconditionError,
                match=f"rows of table 'ads' are those after 1 updates, .* {expected}.",
            ):
                use(*keys, tf.constant(expected, tf.int64))


# First rows.


def test_first_rows_do_not_depend_on_when_or_where_keys_come(storage):
    keys = list(dict.fromkeys(some_keys(200)))
    table, again = open_table(storage), open_table(storage)
    rows = lookup(table, keys)[0].numpy()
    for key in keys[::-1]:
        lookup(again, [key])
    np.testing.assert_array_equal(lookup(again, keys)[0], rows)
    plain = open_table(TieredStorage())
    np.testing.assert_allclose(lookup(plain, keys)[0], rows, rtol=0, atol=1e-6)


def test_first_rows_of_different_keys_differ(storage):
    table = open_table(storage)
    keys = [(f, i) for f in range(3) for i in (-1, 0, 1, 2**63 - 1)]
    rows = lookup(table, keys)[0].numpy()
    assert len(np.unique(rows)) == rows.size


def test_a_key_looked_up_but_not_updated_holds_nothing(storage):
    table = open_table(storage)
    lookup(table, [(0, 5)])
    assert table.size() == 0
    assert list(table.export(10)) == []
    np.testing.assert_array_equal(read(table, [(0, 5)]), [DEFAULT])


# Updates.


@pytest.mark.parametrize("rule", RULES)
def test_updates_are_those_of_numpy(storage, rule):
    table = open_table(storage, rule)
    keys = some_keys(300)
    oracle = oracle_of(table, rule, keys)
    for number in range(5):
        batch = [*some_keys(60, seed=number), (-1, 7)]
        batch = [key for key in batch if key[0] < 0 or key in oracle.first_rows]
        gradients = some_gradients(len(batch), seed=number)
        rate = 0.5 / (1 + number)
        assert step(table, batch, gradients, rate) == number + 1
        oracle.step(batch, gradients, rate)
    assert_as(table, oracle, keys)
    found = sorted_rows(table)
    assert table.size() == len(oracle.rows) == len(found.ids)
    for i, key in enumerate(zip(found.features, found.ids, strict=True)):
        row = oracle.rows[key]
        assert (found.counts[i], found.last_steps[i]) == (row["count"], row["last"])


@pytest.mark.parametrize("rule", ["adam", "rowwise_adagrad", "ftrl"])
def test_lookups_of_one_step_make_one_update(storage, rule):
    apart, together = (open_table(storage, rule) for _ in range(2))
    for number in range(3):
        batches = [some_keys(n, seed=n + number) for n in (30, 1, 20)]
        gradients = [some_gradients(len(batch)) for batch in batches]
        tickets = [lookup(apart, batch)[1] for batch in batches]
        # As tapes do it: backwards.
        for ticket, gradient in reversed(list(zip(tickets, gradients, strict=True))):
            table_step = apart.update(ticket, tf.constant(gradient), 0.5)
        assert table_step == number + 1
        step(together, sum(batches, []), np.concatenate(gradients))
    assert_equal_tables(apart, together)


def test_a_dropped_ticket_changes_nothing(storage):
    table, other = open_table(storage, "adam"), open_table(storage, "adam")
    keys = some_keys(20)
    for _ in range(2):
        lookup(table, keys)
        step(table, keys, some_gradients(20))
        step(other, keys, some_gradients(20))
    assert_equal_tables(table, other)


def test_a_ticket_is_used_once(storage):
    table = open_table(storage)
    _, ticket = lookup(table, [(0, 5)])
    table.update(ticket, tf.ones((1, DIM)), 0.5)
    with pytest.raises(tf.errors.FailedPreconditionError, match="asked twice"):
        table.update(ticket, tf.ones((1, DIM)), 0.5)


def test_a_key_removed_before_its_gradient_comes_back(storage):
    table, keys = open_table(storage, "sgd"), [(0, 5), (1, 5)]
    rows, ticket = lookup(table, keys)
    table.remove(*tensors(keys[:1]))
    table.update(ticket, tf.ones((2, DIM)), 0.5)
    np.testing.assert_allclose(read(table, keys), rows - 0.5, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e13])
def test_a_bad_gradient_is_an_error_and_changes_nothing(storage, value):
    table, keys = open_table(storage), some_keys(20)
    step(table, keys, some_gradients(20))
    before = sorted_rows(table)
    gradients = some_gradients(20)
    gradients[7, 1] = value
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"Table 'ads' .* in update 2\. No row"
    ):
        step(table, keys, gradients)
    assert table.stats()["step"] == 1
    for column, expected in zip(sorted_rows(table), before, strict=True):
        np.testing.assert_array_equal(column, expected)


def test_gradients_may_be_called_bad(storage):
    table = open_table(storage)
    _, ticket = lookup(table, [(0, 5)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"in update 1\. No row"):
        table.update(ticket, tf.ones((1, DIM)), 0.5, tf.constant(False))
    _, ticket = lookup(table, [(0, 5)])
    assert table.update(ticket, tf.ones((1, DIM)), 0.5, tf.constant(True)) == 1


def test_bad_gradients_may_be_skipped(storage):
    table = open_table(storage, bad_gradients="skip")
    assert step(table, [(0, 5)], np.full((1, DIM), np.nan)) == 0
    assert step(table, [(0, 5)], np.ones((1, DIM))) == 1
    assert table.stats()["skipped_updates"] == 1


def test_steps_work_inside_a_function(storage):
    table, other = (open_table(storage, "adam") for _ in range(2))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def train(ids):
        for rate in tf.constant([0.5, 0.25, 0.125]):
            rows, ticket = table.lookup(
                ids, tf.constant([1]), tf.constant(-1, tf.int64)
            )
            table.update(ticket, rows + 1.0, rate)
        return table.read(ids, tf.constant([1]))

    ids = [5, 7, 5, 2**40]
    found = train(tf.constant(ids, tf.int64))
    keys = [(1, i) for i in ids]
    for rate in (0.5, 0.25, 0.125):
        step(other, keys, lookup(other, keys)[0] + 1.0, rate)
    np.testing.assert_array_equal(found, read(other, keys))
    assert_equal_tables(table, other)


# Writing and removing.


def test_of_equal_keys_the_last_written_wins(storage):
    table = open_table(storage)
    weights = tf.constant(np.arange(12.0).reshape(4, DIM), tf.float32)
    table.write(*tensors([(0, 5), (1, 5), (0, 5), (2, 9)]), weights)
    found = read(table, [(0, 5), (1, 5), (2, 9), (2, 5)])
    np.testing.assert_array_equal(found[:3], weights.numpy()[[2, 1, 3]])
    np.testing.assert_array_equal(found[3], DEFAULT)
    assert table.size() == 3


def test_writing_leaves_slots_and_counters(storage):
    table = open_table(storage, "adagrad")
    step(table, [(0, 5)], np.ones((1, DIM)))
    before = sorted_rows(table)
    table.write(*tensors([(0, 5)]), tf.zeros((1, DIM)))
    after = sorted_rows(table)
    np.testing.assert_array_equal(after.values[:, :DIM], np.zeros((1, DIM)))
    np.testing.assert_array_equal(after.values[:, DIM:], before.values[:, DIM:])
    np.testing.assert_array_equal(after.counts, before.counts)
    np.testing.assert_array_equal(after.last_steps, before.last_steps)


def test_removed_keys_start_again(storage):
    table = open_table(storage, "adam")
    keys = [(0, 5), (1, 5), (2, 7)]
    first = lookup(table, keys)[0].numpy()
    step(table, keys, np.ones((3, DIM)))
    assert table.remove(*tensors([(0, 5), (0, 5), (2, 7), (2, 8)])) == 2
    assert table.size() == 1
    np.testing.assert_array_equal(read(table, keys)[[0, 2]], [DEFAULT] * 2)
    np.testing.assert_array_equal(lookup(table, keys)[0].numpy()[[0, 2]], first[[0, 2]])
    assert table.stats()["step"] == 1


# Whole tables.


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_export_yields_each_known_row_once_without_slots(storage, batch_size):
    table = open_table(storage, "adam")
    keys = list(dict.fromkeys(some_keys(100)))
    step(table, keys, some_gradients(len(keys)))
    lookup(table, [(2, 123456789)])
    found = {}
    for exported, weights in table.export(batch_size):
        assert weights.shape == (len(exported), DIM)
        assert len(exported) <= batch_size
        for key, row in zip(exported.tolist(), weights, strict=True):
            assert tuple(key) not in found
            found[tuple(key)] = row
    assert set(found) == set(keys)
    np.testing.assert_array_equal([found[key] for key in keys], read(table, keys))


@pytest.mark.parametrize("rule", RULES)
def test_a_restored_table_goes_on_to_the_bit(storage, rule):
    table, other = (open_table(storage, rule) for _ in range(2))
    for number in range(2):
        step(table, some_keys(50, number), some_gradients(50, number))
    step(other, some_keys(30, 9), some_gradients(30))  # It is to be forgotten.
    saved = table.save_rows()
    order = np.random.default_rng(0).permutation(len(saved.ids))
    shuffled = Rows(*(tf.gather(column, order) for column in saved))
    other.restore_rows(shuffled, step=2)
    assert other.stats()["step"] == 2
    assert other.size() == table.size()
    assert_equal_tables(other, table)
    for one in (table, other):
        assert step(one, some_keys(50, 2), some_gradients(50, 2)) == 3
    assert_equal_tables(other, table)


def test_two_tables_of_one_storage_share_nothing(storage):
    table, other = (open_table(storage) for _ in range(2))
    step(table, [(0, 5)], np.ones((1, DIM)))
    np.testing.assert_array_equal(read(other, [(0, 5)]), [DEFAULT])
    assert other.stats()["step"] == 0


def test_random_operations_do_what_a_dict_does(storage):
    rng = np.random.default_rng(5)
    table = open_table(storage, "adagrad")
    pool = list(dict.fromkeys(some_keys(400)))
    oracle = oracle_of(table, "adagrad", pool)
    saved = None
    for number in range(150):
        n = int(rng.integers(0, 20))
        keys = [pool[i] for i in rng.integers(0, len(pool), n)]
        kind = rng.choice(["step", "write", "remove", "read", "save", "restore"])
        if kind == "step":
            gradients = some_gradients(n, seed=number)
            step(table, keys, gradients)
            oracle.step(keys, gradients)
        elif kind == "write":
            weights = some_gradients(n, seed=number)
            table.write(*tensors(keys), tf.constant(weights))
            for key, row in zip(keys, weights, strict=True):
                oracle.row(key)["w"] = row.astype("float64")
        elif kind == "remove":
            known = set(keys) & set(oracle.rows)
            removed = table.remove(*tensors(keys))
            assert len(known) <= removed <= len(set(keys))
            for key in known:
                del oracle.rows[key]
        elif kind == "save":
            rows = {key: dict(row) for key, row in oracle.rows.items()}
            saved = (table.save_rows(), oracle.steps, rows)
        elif kind == "restore" and saved:
            table.restore_rows(saved[0], saved[1])
            oracle.steps = saved[1]
            oracle.rows = {key: dict(row) for key, row in saved[2].items()}
        assert table.size() == len(oracle.rows)
        assert_as(table, oracle, keys)
    assert_as(table, oracle, pool)
    assert table.stats()["step"] == oracle.steps


def test_every_count_is_told(storage):
    table = open_table(storage)
    step(table, some_keys(100), some_gradients(100))
    lookup(table, [(0, 123456789)])
    stats = table.stats()
    assert stats["known_rows"] == table.size() == len(set(some_keys(100)))
    # Over SSD, a row that was never trained may have left without a trace. TFRA's
    # tables have no such rows.
    rows = stats["rows"] + stats["rows_on_disk_only"]
    over_ssd = stats["disk_bytes"] > 0
    untrained = {1} if isinstance(storage, TieredStorage) and not over_ssd else {0, 1}
    assert rows - stats["known_rows"] in untrained
    assert stats["memory_bytes"] >= stats["rows"] * stats["row_bytes"]
    assert stats["row_bytes"] >= 4 * 2 * DIM
    assert (stats["step"], stats["skipped_updates"]) == (1, 0)
    if over_ssd:
        assert stats["evicted_rows"] >= stats["rows_on_disk_only"] > 0
    else:
        assert stats["evicted_rows"] == stats["disk_bytes"] == 0


# The recipe.


def test_a_recipe_survives_serialisation(storage):
    config = keras.saving.serialize_keras_object(storage)
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(storage)
    assert keras.saving.serialize_keras_object(again) == config


def test_a_recipe_says_in_a_word_what_it_is(storage):
    assert storage.describe()
    assert storage.describe().replace("_", "").isalnum()


@pytest.mark.parametrize("rule", RULES)
def test_the_forecast_knows_the_bytes_of_a_row(storage, rule):
    config = TableConfig("ads", dim=DIM, optimizer=RULES[rule])
    forecast = storage.forecast(config, num_keys=1000)
    table = storage.open(config, SEEDS)
    step(table, [(0, 5)], np.ones((1, DIM)))
    assert forecast.row_bytes == table.stats()["row_bytes"]
    assert forecast.num_keys == 1000
    assert forecast.ram_bytes + forecast.ssd_bytes >= 1000 * forecast.row_bytes


# All storages against each other.


@pytest.mark.parametrize("rule", RULES)
def test_results_do_not_depend_on_the_storage(storage, rule):
    tables = [open_table(storage, rule), open_table(TieredStorage(), rule)]
    for number, table in itertools.product(range(3), tables):
        # Enough keys for the store to share them among threads.
        step(table, some_keys(5000, number), some_gradients(5000, number))
    is_tiered = isinstance(storage, TieredStorage)
    (assert_equal_tables if is_tiered else assert_close_tables)(*tables)
