"""`StockTable`: reads what a dict of the same rows would give."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfctr.export.stock_table import StockTable

DIM = 3
DEFAULT = (0.5, -1.0, 2.0)
A = 0x9E3779B97F4A7C15  # Of `KeyIndex`.


@pytest.fixture
def rows():
    """Rows by key, of three features with ids in common."""
    rng = np.random.default_rng(0)
    keys = [(f, int(id)) for f in range(3) for id in [0, -1, 2**62, *range(5, 40)]]
    return {key: rng.normal(size=DIM).astype(np.float32) for key in keys}


def make(rows, **options):
    keys = np.array(list(rows), np.int64).reshape(-1, 2)
    values = np.array(list(rows.values()), np.float32).reshape(-1, DIM)
    return StockTable("a table", keys, values, DEFAULT, **options)


def expected(rows, ids, features):
    ids = np.asarray(ids)
    features = np.tile(features, len(ids) // max(len(features), 1))
    absent, default = np.zeros(DIM), np.array(DEFAULT)
    return np.array(
        [
            absent if f < 0 else rows.get((int(f), int(id)), default)
            for f, id in zip(features, ids, strict=True)
        ],
        np.float32,
    ).reshape(-1, DIM)


READS = pytest.mark.parametrize(
    "ids, features",
    [
        ([0, -1, 2**62, 7, 1000, -5], [0]),
        ([0, 7, 1000, 7, 7, 7], [0, 1, 2]),
        ([0, 7, 1000, 7], [2, -1, 0, -1]),
        ([5, 5], [0, 3]),
        ([], [0]),
        ([], [0, 1]),
        ([], []),
    ],
    ids=["one", "columns", "padded", "unknown", "none", "no columns", "nothing"],
)


@READS
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "graph"])
def test_it_reads_as_a_dict_does(rows, ids, features, traced):
    table = make(rows)
    read = tf.function(table.read, autograph=False) if traced else table.read
    found = read(tf.constant(ids, tf.int64), tf.constant(features, tf.int32))
    np.testing.assert_array_equal(found, expected(rows, ids, features))
    assert found.dtype == tf.float32


@pytest.mark.parametrize("known", [True, False], ids=["known", "fed"])
def test_an_index_of_another_seed_is_read(known):
    # The hashes of both are equal by the first one.
    one, other = 12345, (12345 - A + 2**63) % 2**64 - 2**63
    rows = {(0, one): np.ones(DIM), (1, other): np.full(DIM, 2.0)}
    table = make(rows)
    ids, features = [one, one, other, other], tf.constant([0, 1])
    spec = [tf.TensorSpec([None], tf.int32)]
    fed = tf.function(lambda f: table.read(tf.constant(ids), f), spec)
    found = table.read(tf.constant(ids), features) if known else fed(features)
    np.testing.assert_array_equal(found, expected(rows, ids, features))


@pytest.mark.parametrize("features", [[0], [1]])
def test_ids_at_the_ends_are_no_empty_slots(features):
    ids = [-(2**63), 2**63 - 1, -1, 0, 1]
    some = {(0, id): np.full(DIM, n + 1.0) for n, id in enumerate(ids[:2])}
    found = make(some).read(tf.constant(ids, tf.int64), tf.constant(features))
    np.testing.assert_array_equal(found, expected(some, ids, features))


def test_without_rows_it_reads_the_default():
    table = make({})
    found = table.read(tf.constant([0, 1], tf.int64), tf.constant([0]))
    np.testing.assert_array_equal(found, [DEFAULT, DEFAULT])
    assert table.num_rows == 0


@READS
def test_float16_is_the_closest_there_is(rows, ids, features):
    table = make(rows, quantize="float16")
    found = table.read(tf.constant(ids, tf.int64), tf.constant(features, tf.int32))
    closest = expected(rows, ids, features).astype(np.float16)
    np.testing.assert_array_equal(found, closest)


@READS
def test_int8_is_off_by_half_a_step_at_most(rows, ids, features):
    table = make(rows, quantize="int8")
    found = table.read(tf.constant(ids, tf.int64), tf.constant(features, tf.int32))
    exact = expected(rows, ids, features)
    step = np.abs(exact).max(axis=1, keepdims=True, initial=0) / 127
    assert (np.abs(found - exact) <= step / 2 + 1e-6).all()
    assert (found.numpy()[step[:, 0] == 0] == 0).all()


def test_the_order_of_rows_changes_nothing(rows):
    backwards = dict(reversed(rows.items()))
    one, other = make(rows), make(backwards)
    for left, right in zip(one.variables, other.variables, strict=True):
        np.testing.assert_array_equal(left, right)


def test_quantized_rows_are_smaller(rows):
    sizes = [
        max(
            v.numpy().nbytes
            for v in make(rows, quantize=q).variables
            if "rows" in v.name
        )
        for q in (None, "float16", "int8")
    ]
    assert sizes[0] == 2 * sizes[1] == 4 * sizes[2]


def test_weights_beyond_float16_are_refused(rows):
    rows[0, 7] = np.array([1.0, -70_000.0, 0.0], np.float32)
    message = "up to 65504. Received: table 'a table' with a weight of 70000. Export"
    with pytest.raises(ValueError, match=re.escape(message)):
        make(rows, quantize="float16")


@pytest.mark.parametrize("quantize", ["float16", "int8"])
@pytest.mark.parametrize("weight", [np.nan, -np.inf])
def test_what_cannot_be_rounded_is_refused(rows, quantize, weight):
    rows[0, 7] = np.array([1.0, weight, 0.0], np.float32)
    message = f"Rows in {quantize} are rounded from finite weights. Received: table 'a "
    with pytest.raises(ValueError, match=message + "table' with NaN or infinity in 1 "):
        make(rows, quantize=quantize)


def test_int8_holds_zeros_and_weights_of_any_size():
    sizes = [0.0, 3e38, 1e-30, 9.1e-43]
    values = {(0, n): np.array([s, -s, s / 2]) for n, s in enumerate(sizes)}
    keys = np.arange(4)
    found = make(values, quantize="int8").read(tf.constant(keys), tf.constant([0]))
    exact = expected(values, keys, [0])
    assert (np.sign(found) * np.sign(exact) >= 0).all()
    np.testing.assert_allclose(found[:3], exact[:3], rtol=0.01)


def save_large(path, count, row):
    """Saves a table of equal rows, in files of a gigabyte."""
    keys = np.stack([np.zeros(count, np.int64), np.arange(count) << 20], axis=1)
    # One row in memory, until the table has them all.
    rows = np.broadcast_to(row, (count, len(row)))
    module = tf.Module()
    module.table = table = StockTable("large", keys, rows, [7.0] * len(row))
    specs = [tf.TensorSpec([None], tf.int64, "ids")]
    read = tf.function(lambda ids: {"rows": table.read(ids, tf.constant([0]))}, specs)
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=10**9)
    options = tf.saved_model.SaveOptions(experimental_sharding_callback=policy)
    tf.saved_model.save(module, str(path), read, options)


@pytest.mark.soak
def test_a_table_beyond_two_gigabytes_is_saved_and_read(tmp_path):
    count, row = 2_200_000, np.arange(250, dtype=np.float32)
    save_large(tmp_path, count, row)
    sizes = [path.stat().st_size for path in (tmp_path / "variables").iterdir()]
    assert sum(sizes) > 2**31 and max(sizes) < 1.01e9
    loaded = tf.saved_model.load(str(tmp_path))
    asked = np.array([0, 12345, count - 1, count], np.int64) << 20
    found = loaded.signatures["serving_default"](ids=tf.constant(asked))["rows"]
    np.testing.assert_array_equal(found, [row, row, row, [7.0] * 250])
