"""`StoreTable` beside TFRA's own table on the CPU: the same calls, the same rows."""

import importlib.util
import pathlib

import numpy as np
import pytest
import tensorflow as tf

if importlib.util.find_spec("tensorflow_recommenders_addons") is None:
    pytest.skip("this environment has no TFRA", allow_module_level=True)

from keras_layers.storage.tfra import TieredTableCreator
from keras_layers.storage.tfra.import_guard import import_tfra

FLOATS, INTS = (tf.float32, 3), (tf.int32, 1)
KINDS = pytest.mark.parametrize("kind", [FLOATS, INTS], ids=["float32", "int32"])


def make_table(kind, creator=None, name="ads_mht_1of1", device="/CPU:0"):
    dtype, dim = kind
    return (creator or TieredTableCreator()).create(
        key_dtype=tf.int64,
        value_dtype=dtype,
        default_value=tf.cast(tf.range(dim) + 7, dtype),
        name=name,
        init_size=0,
        device=device,
    )


def make_theirs(kind, name="ads_mht_1of1"):
    return make_table(kind, import_tfra().CuckooHashTableCreator(), name)


def rows_of(table):
    keys, values = table.export()
    return dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


def draw(rng, kind, n):
    dtype, dim = kind
    if dtype == tf.int32:
        info = np.iinfo(np.int32)
        return rng.integers(info.min, info.max, (n, dim), np.int32, endpoint=True)
    return rng.normal(size=(n, dim)).astype(np.float32)


@KINDS
@pytest.mark.parametrize("tiers", [{}, {"ram": "16KB"}], ids=["ram", "ram_ssd"])
def test_random_calls_do_the_same_as_to_the_table_of_tfra(kind, tiers, tmp_path):
    if tiers:
        tiers = {**tiers, "ssd": tmp_path}
    ours, theirs = make_table(kind, TieredTableCreator(**tiers)), make_theirs(kind)
    rng = np.random.default_rng(3)
    for _ in range(60):
        n = int(rng.integers(0, 300))
        keys = tf.constant(rng.choice(2000, n, replace=False) - 1000, tf.int64)
        values, call = draw(rng, kind, n), rng.integers(5)
        if call == 0:
            for table in (ours, theirs):
                table.remove(keys)
        elif call == 1:
            flags = tf.constant(rng.integers(0, 2, (n, 1)), tf.bool)
            deltas = values // 2 if kind == INTS else values
            for table in (ours, theirs):
                table.accum(keys, deltas, flags)
        else:
            for table in (ours, theirs):
                table.insert(keys, values)
        asked = tf.constant(rng.integers(-1200, 1200, 50), tf.int64)
        for defaults in (None, draw(rng, kind, 50), draw(rng, kind, 1)[0]):
            found, there = ours.lookup(asked, defaults, return_exists=True)
            expected = theirs.lookup(asked, defaults, return_exists=True)
            np.testing.assert_array_equal(found, expected[0])
            np.testing.assert_array_equal(there, expected[1])
        assert int(ours.size()) == int(theirs.size())
    assert rows_of(ours) == rows_of(theirs)
    if tiers:
        store = next(tmp_path.glob("tfctr-*"))
        assert any(store.glob("segment-*"))  # Rows have been there.


@KINDS
def test_no_keys_are_an_answer_too(kind):
    dtype, dim = kind
    table, none = make_table(kind), tf.zeros([0], tf.int64)
    assert table.lookup(none).shape == (0, dim)
    values, exists = table.lookup(none, tf.zeros([0, dim], dtype), return_exists=True)
    assert (values.shape, exists.shape) == ((0, dim), (0,))
    table.insert(none, tf.zeros([0, dim], dtype))
    table.accum(none, tf.zeros([0, dim], dtype), tf.zeros([0, 1], tf.bool))
    table.remove(none)
    keys, values = table.export()
    assert (keys.shape, values.shape, int(table.size())) == ((0,), (0, dim), 0)


def test_a_scalar_is_the_default_of_every_key():
    table = make_table(INTS)
    table.insert(tf.constant([5], tf.int64), [[-3]])
    found = table.lookup(tf.constant([4, 5], tf.int64), tf.constant(0, tf.int32))
    assert found.numpy().tolist() == [[0], [-3]]


def test_a_lookup_inserts_nothing_and_has_a_static_width():
    table = make_table(FLOATS)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def look_up(keys):
        values = table.lookup(keys)
        assert values.shape.as_list() == [None, 3]
        return values

    look_up(tf.constant([1, 2], tf.int64))
    assert int(table.size()) == 0


def test_keys_may_have_any_shape():
    table = make_table(FLOATS)
    keys = tf.constant([[1, 2], [3, 4]], tf.int64)
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    table.insert(keys, values)
    found, exists = table.lookup(keys, return_exists=True)
    np.testing.assert_array_equal(found, values)
    assert exists.numpy().tolist() == [[True, True], [True, True]]


def test_a_table_can_be_cleared_and_filled_again():
    table = make_table(FLOATS)
    table.insert(tf.constant([1, 2], tf.int64), tf.ones([2, 3]))
    table.clear()
    assert rows_of(table) == {}
    table.insert(tf.constant([2], tf.int64), tf.zeros([1, 3]))
    assert rows_of(table) == {2: [0.0, 0.0, 0.0]}


def test_a_nan_is_refused_by_name():
    table = make_table(FLOATS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'ads_mht_1of1' takes"):
        table.insert(tf.constant([1], tf.int64), [[0.0, np.nan, 0.0]])


@KINDS
def test_files_pass_between_the_tables_of_tfra_and_ours(kind, tmp_path):
    rng = np.random.default_rng(5)
    keys, values = tf.range(-20, 20, dtype=tf.int64), draw(rng, kind, 40)
    ours, theirs = make_table(kind), make_theirs(kind)
    ours.insert(keys, values)
    ours.save_to_file_system(str(tmp_path / "a" / "b"))
    theirs.load_from_file_system(str(tmp_path / "a" / "b"))
    assert rows_of(theirs) == rows_of(ours)

    theirs.insert(keys + 30, values)
    theirs.save_to_file_system(str(tmp_path), file_name="their")
    ours.load_from_file_system(str(tmp_path), file_name="their")
    assert rows_of(ours) == rows_of(theirs)
    assert len(rows_of(ours)) == 70


def test_loading_replaces_what_was_there(tmp_path):
    table = make_table(FLOATS)
    table.insert(tf.constant([1, 2], tf.int64), tf.ones([2, 3]))
    table.save_to_file_system(str(tmp_path))
    table.insert(tf.constant([2, 3, 4], tf.int64), tf.zeros([3, 3]))
    table.load_from_file_system(str(tmp_path))
    assert rows_of(table) == {1: [1.0] * 3, 2: [1.0] * 3}


def test_files_can_be_appended_to_and_their_directory_named_outside(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TFRA_SAVED_KV", str(tmp_path))
    for key in (1, 2):
        table = make_table(FLOATS)
        table.insert(tf.constant([key], tf.int64), tf.fill([1, 3], float(key)))
        table.save_to_file_system("elsewhere", append_to_file=True)
    table.load_from_file_system("elsewhere")
    assert rows_of(table) == {1: [1.0] * 3, 2: [2.0] * 3}


def test_the_shards_of_a_variable_are_loaded_into_one_table(tmp_path):
    for shard in (1, 2):
        part = make_table(FLOATS, name=f"ads_mht_{shard}of2")
        part.insert(tf.constant([shard], tf.int64), tf.ones([1, 3]))
        part.save_to_file_system(
            str(tmp_path), file_name=f"ads_mht_{shard}of2_rank0_size1"
        )
    other = make_table(FLOATS, name="ads_adam_m_mht_1of1")
    other.insert(tf.constant([9], tf.int64), tf.ones([1, 3]))
    other.save_to_file_system(str(tmp_path))
    table = make_table(FLOATS)
    table.load_from_file_system(str(tmp_path), load_entire_dir=True)
    assert sorted(rows_of(table)) == [1, 2]


def test_a_name_is_no_pattern(tmp_path):
    table = make_table(FLOATS, name="x[1]*_mht_1of1")
    table.insert(tf.constant([7], tf.int64), tf.ones([1, 3]))
    table.save_to_file_system(str(tmp_path))
    table.clear()
    table.load_from_file_system(str(tmp_path), load_entire_dir=True)
    assert sorted(rows_of(table)) == [7]


def test_files_that_are_not_there_leave_the_rows(tmp_path):
    table = make_table(FLOATS)
    table.insert(tf.constant([7], tf.int64), tf.ones([1, 3]))
    for entire in (False, True):
        with pytest.raises(tf.errors.OpError, match=f"{tmp_path}/ads.*-keys"):
            table.load_from_file_system(str(tmp_path), load_entire_dir=entire)
        assert sorted(rows_of(table)) == [7]


def test_a_scratch_directory_lives_as_long_as_its_table(tmp_path):
    creator = TieredTableCreator(ram="1MB", ssd=tmp_path)
    table, slot = (make_table(FLOATS, creator, name) for name in ("ads", "ads_m"))
    assert len(list(tmp_path.glob("tfctr-*"))) == 2
    del table
    assert len(list(tmp_path.glob("tfctr-*"))) == 1
    del slot
    assert list(tmp_path.glob("tfctr-*")) == []


def test_tables_of_one_creator_share_its_memory():
    creator = TieredTableCreator(ram=4000)
    first, second = (make_table(FLOATS, creator, name) for name in ("ads", "ads_m"))
    keys = tf.range(60, dtype=tf.int64)
    first.insert(keys, tf.zeros([60, 3]))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="'ads_m' is full"):
        second.insert(keys, tf.zeros([60, 3]))
    del first
    second.insert(keys, tf.zeros([60, 3]))


def test_a_variable_spreads_its_keys_over_several_tables(tmp_path):
    de = import_tfra()
    variable = de.Variable(
        dim=2,
        devices=["/CPU:0", "/CPU:0"],
        name="spread",
        initializer=0.5,
        kv_creator=TieredTableCreator(),
    )
    keys = tf.range(10, dtype=tf.int64)
    variable.upsert(keys, tf.ones([10, 2]))
    assert [int(table.size()) for table in variable.tables] == [5, 5]
    found = variable.lookup(tf.constant([3, 30], tf.int64))
    assert found.numpy().tolist() == [[1.0, 1.0], [0.5, 0.5]]
    variable.save_to_file_system(str(tmp_path))
    names = {path.name for path in pathlib.Path(tmp_path).iterdir()}
    assert "spread_mht_2of2_rank0_size1-values" in names


def test_a_checkpoint_of_a_variable_passes_to_the_tables_of_tfra(tmp_path):
    de = import_tfra()

    def variable(creator):
        return de.Variable(dim=2, devices=["/CPU:0"], name="passed", kv_creator=creator)

    first = variable(TieredTableCreator())
    first.upsert(tf.constant([4, -4], tf.int64), [[1.0, 2.0], [3.0, 4.0]])
    path = tf.train.Checkpoint(v=first).save(str(tmp_path / "rows"))
    for creator in (TieredTableCreator(), de.CuckooHashTableCreator()):
        copy = variable(creator)
        copy.upsert(tf.constant([5], tf.int64), [[0.0, 0.0]])
        tf.train.Checkpoint(v=copy).restore(path).assert_consumed()
        assert rows_of(copy.tables[0]) == {4: [1.0, 2.0], -4: [3.0, 4.0]}
