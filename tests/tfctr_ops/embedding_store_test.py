"""`EmbeddingStore` by example: keys, steps, tickets, whole rows."""

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import RowInitializer, Rows, SparseOptimizer

FEATURE = tf.constant([0])
INT64 = np.iinfo(np.int64)
ADAM = SparseOptimizer("adam", learning_rate=0.1)
UNIFORM = RowInitializer("uniform", -0.5, 1.0)


def ids(*values):
    return tf.constant(values, tf.int64)


def train(store, keys, gradients, features=FEATURE, learning_rate=0.5):
    _, ticket = store.lookup(keys, features)
    gradients = tf.constant(gradients, tf.float32)
    return int(store.update(ticket, gradients, learning_rate))


def read(store, keys, features=FEATURE):
    return store.read(keys, features).numpy().tolist()


def by_key(rows):
    """The rows of an export as a dict; the order of an export means nothing."""
    columns = (np.asarray(column).tolist() for column in rows)
    return {
        (feature, id_): (values, last_step, count)
        for id_, feature, values, last_step, count in zip(*columns, strict=True)
    }


# Keys.


def test_every_int64_is_an_id_of_its_own(make_store):
    near = [INT64.min, -(2**53), -(2**32), -1, 0, 2**31, 2**32, 2**53, INT64.max]
    keys = sorted({near_by for id_ in near for near_by in (id_, id_ ^ 1, id_ ^ 2**31)})
    weights = np.arange(2.0 * len(keys)).reshape(-1, 2)
    store = make_store()
    store.write(ids(*keys), FEATURE, tf.constant(weights, tf.float32))
    np.testing.assert_array_equal(store.read(ids(*keys), FEATURE), weights)
    assert sorted(store.export_rows().ids.numpy().tolist()) == keys


def test_equal_ids_of_different_features_are_different_keys(make_store):
    store = make_store()
    train(store, ids(7, 7), [[2.0, 0.0], [0.0, 4.0]], tf.constant([0, 1]))
    assert read(store, ids(7)) == [[0.0, 1.0]]
    assert read(store, ids(7), tf.constant([1])) == [[1.0, -1.0]]


def test_features_repeat_over_the_ids(make_store):
    store = make_store()
    keys = ids(5, 5, 6, 6)
    store.write(keys, tf.constant([0, 1, 0, 1]), tf.reshape(tf.range(8.0), (4, 2)))
    assert read(store, keys, tf.constant([0, 1])) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_an_absent_key_reads_zeros_and_takes_no_gradient(make_store):
    store = make_store(default_row=(3.0, 3.0))
    absent = tf.constant([-1, 0])
    rows, ticket = store.lookup(ids(4, 4), absent)
    assert rows.numpy().tolist() == [[0.0, 0.0], [1.0, 1.0]]
    store.update(ticket, tf.constant([[9.0, 9.0], [2.0, 2.0]]), 0.5)
    assert read(store, ids(4, 4), absent) == [[0.0, 0.0], [0.0, 0.0]]
    assert by_key(store.export_rows()) == {(0, 4): ([0.0, 0.0], 1, 1)}


def test_a_batch_may_be_empty(make_store):
    store = make_store()
    for features in (FEATURE, tf.zeros([0], tf.int32)):
        rows, ticket = store.lookup(ids(), features)
        assert rows.shape == (0, 2)
        store.update(ticket, tf.zeros((0, 2)), 0.5)
        assert store.read(ids(), features).shape == (0, 2)
    assert int(store.remove(ids(), FEATURE)) == 0
    assert store.stats()["rows"] == 0


def test_stores_of_one_name_are_two_tables(make_store):
    store, namesake = make_store(), make_store()
    train(store, ids(1), [[2.0, 2.0]])
    assert read(namesake, ids(1)) == [[0.0, 0.0]]
    assert namesake.stats()["rows"] == 0


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 15, 16, 17, 40])
def test_rows_of_every_width_keep_to_themselves(make_store, dim):
    store = make_store(dim=dim, optimizer=ADAM)
    keys = tf.range(3000, dtype=tf.int64)
    weights = np.arange(3000.0 * dim, dtype="float32").reshape(-1, dim)
    store.write(keys, FEATURE, tf.constant(weights))
    np.testing.assert_array_equal(store.read(keys, FEATURE), weights)


# A step.


def test_a_key_reads_the_default_row_until_its_first_update(make_store):
    store = make_store(default_row=(7.0, 8.0))
    assert read(store, ids(5)) == [[7.0, 8.0]]
    rows, ticket = store.lookup(ids(5), FEATURE)
    assert rows.numpy().tolist() == [[1.0, 1.0]]
    assert read(store, ids(5)) == [[7.0, 8.0]]
    store.update(ticket, tf.constant([[1.0, 2.0]]), 0.5)
    assert read(store, ids(5)) == [[0.5, 0.0]]


def test_gradients_of_equal_keys_are_summed_and_move_the_row_once(make_store):
    # Adam's first step is lr * sign(sum): summing after the square, or moving twice,
    # would give something else.
    store = make_store(optimizer=ADAM)
    train(store, ids(5, 9, 5), [[1.0, 3.0], [1.0, 1.0], [2.0, -4.0]], learning_rate=0.1)
    expected = [[0.9, 1.1], [0.9, 0.9]]
    np.testing.assert_allclose(read(store, ids(5, 9)), expected, rtol=1e-6)
    assert {key: row[1:] for key, row in by_key(store.export_rows()).items()} == {
        (0, 5): (1, 1),
        (0, 9): (1, 1),
    }


def test_a_row_counts_its_updates_and_notes_the_last(make_store):
    store = make_store()
    for step, keys in enumerate([(1, 2), (1,), (1, 3)], start=1):
        assert train(store, ids(*keys), np.zeros((len(keys), 2))) == step
    counters = {key[1]: row[1:] for key, row in by_key(store.export_rows()).items()}
    assert counters == {1: (3, 3), 2: (1, 1), 3: (3, 1)}


def test_each_update_uses_its_own_learning_rate(make_store):
    store = make_store()
    train(store, ids(1), [[1.0, 1.0]], learning_rate=0.5)
    train(store, ids(1), [[1.0, 1.0]], learning_rate=tf.constant(0.25))
    assert read(store, ids(1)) == [[0.25, 0.25]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_several_lookups_make_the_update_of_one(make_store, order):
    batches = [ids(1, 2, 2), ids(2, 3), ids(1, 4, 3, 1)]
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=(len(b), 2)).astype("float32") for b in batches]
    store, whole = (make_store(optimizer=ADAM, initializer=UNIFORM) for _ in range(2))
    for _ in range(3):
        tickets = [store.lookup(batch, FEATURE)[1] for batch in batches]
        for i in order:
            step = store.update(tickets[i], gradients[i], 0.1)
        whole_step = train(
            whole, tf.concat(batches, 0), np.concatenate(gradients), learning_rate=0.1
        )
        assert int(step) == whole_step
    assert by_key(store.export_rows()) == by_key(whole.export_rows())


def test_a_lookup_without_a_gradient_holds_nothing_up(make_store):
    store = make_store()
    _, dropped = store.lookup(ids(1, 2), FEATURE)
    _, ticket = store.lookup(ids(2, 3), FEATURE)
    assert int(store.update(ticket, tf.ones((2, 2)), 0.5)) == 1
    del dropped
    assert read(store, ids(1, 2, 3)) == [[0.0, 0.0], [0.5, 0.5], [0.5, 0.5]]
    assert train(store, ids(2), [[1.0, 1.0]]) == 2
    assert read(store, ids(2)) == [[0.0, 0.0]]


def test_what_was_reported_is_applied_before_the_next_read(make_store):
    store = make_store()
    _, first = store.lookup(ids(1), FEATURE)
    _, second = store.lookup(ids(2), FEATURE)
    store.update(first, tf.ones((1, 2)), 0.5)  # The second is still open.
    assert read(store, ids(1)) == [[0.5, 0.5]]
    assert int(store.update(second, tf.ones((1, 2)), 0.5)) == 2


def test_a_row_removed_between_lookup_and_update_comes_back(make_store):
    store = make_store()
    train(store, ids(1), [[4.0, 4.0]])
    _, ticket = store.lookup(ids(1), FEATURE)
    store.remove(ids(1), FEATURE)
    store.update(ticket, tf.constant([[1.0, 1.0]]), 0.5)
    # From its first weights, since what it had learned was removed.
    assert by_key(store.export_rows()) == {(0, 1): ([0.5, 0.5], 2, 1)}


def test_an_old_handle_does_not_move_the_row_that_took_its_place(make_store):
    store = make_store()
    keys = tf.range(1000, dtype=tf.int64)
    _, ticket = store.lookup(keys, FEATURE)
    store.remove(keys, FEATURE)
    _, newer = store.lookup(keys + 1000, FEATURE)  # Takes the slots over.
    store.update(ticket, tf.fill((1000, 2), 2.0), 0.5)
    store.update(newer, tf.fill((1000, 2), 4.0), 0.5)
    assert store.read(keys, FEATURE).numpy().tolist() == [[0.0, 0.0]] * 1000
    assert store.read(keys + 1000, FEATURE).numpy().tolist() == [[-1.0, -1.0]] * 1000


def test_a_tf_function_runs_its_calls_in_order(make_store):
    store = make_store()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(keys):
        before = store.read(keys, FEATURE)
        rows, ticket = store.lookup(keys, FEATURE)
        number = store.update(ticket, tf.ones_like(rows), 0.5)
        store.write(keys[:1], FEATURE, tf.fill((1, 2), 9.0))
        return before, number, store.read(keys, FEATURE)

    before, number, after = step(ids(1, 2))
    assert before.numpy().tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert int(number) == 1
    assert after.numpy().tolist() == [[9.0, 9.0], [0.5, 0.5]]
    before, number, after = step(ids(2, 1, 3))
    assert before.numpy().tolist() == [[0.5, 0.5], [9.0, 9.0], [0.0, 0.0]]
    assert int(number) == 2
    assert after.numpy().tolist() == [[9.0, 9.0], [8.5, 8.5], [0.5, 0.5]]


def test_a_step_that_is_expected_passes(make_store):
    store = make_store()
    for step in range(3):
        store.read(ids(1), FEATURE, expected_step=tf.constant(step))
        _, ticket = store.lookup(ids(1), FEATURE, expected_step=step)
        store.update(ticket, tf.ones((1, 2)), 0.5)


# Bad gradients.


def test_a_step_with_a_bad_gradient_is_skipped_and_counted_if_asked(make_store):
    store = make_store(skip_bad_gradients=True)
    assert train(store, ids(1), [[2.0, 2.0]]) == 1
    for bad in (np.nan, np.inf, -np.inf, 1.1e12):
        assert train(store, ids(1, 2), [[1.0, 1.0], [1.0, bad]]) == 1
    assert read(store, ids(1, 2)) == [[0.0, 0.0], [0.0, 0.0]]
    stats = store.stats()
    assert (stats["skipped_updates"], stats["step"], stats["known_rows"]) == (4, 1, 1)
    assert train(store, ids(2), [[2.0, 2.0]]) == 2


def test_a_step_counts_as_bad_if_the_caller_says_so(make_store):
    store = make_store(skip_bad_gradients=True)
    # One lookup has keys, the other has none.
    for of_step in (ids(1), ids()):
        _, ticket = store.lookup(of_step, FEATURE)
        gradients = tf.ones((len(of_step), 2))
        assert int(store.update(ticket, gradients, 0.5, tf.constant(False))) == 0
    stats = store.stats()
    assert (stats["skipped_updates"], stats["step"], stats["known_rows"]) == (2, 0, 0)
    strict = make_store()
    _, ticket = strict.lookup(ids(1), FEATURE)
    with pytest.raises(tf.errors.InvalidArgumentError, match="in update 1"):
        strict.update(ticket, tf.ones((1, 2)), 0.5, tf.constant(False))


def test_training_goes_on_after_the_error_of_a_bad_gradient(make_store):
    store = make_store()
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
        train(store, ids(1, 2), [[1.0, 1.0], [np.nan, 1.0]])
    assert store.stats()["step"] == 0
    assert train(store, ids(1), [[2.0, 2.0]]) == 1
    assert by_key(store.export_rows()) == {(0, 1): ([0.0, 0.0], 1, 1)}


def test_the_largest_gradient_allowed_is_applied(make_store):
    store = make_store()
    train(store, ids(1), [[1e12, -1e12]], learning_rate=1.0)
    assert read(store, ids(1)) == [[np.float32(-1e12), np.float32(1e12)]]


# Writing, removing, whole rows.


def test_writing_sets_weights_and_keeps_slots_and_counters(make_store):
    store = make_store(optimizer=ADAM)
    train(store, ids(1), [[2.0, 2.0]])
    (values, *counters) = by_key(store.export_rows())[0, 1]
    store.write(ids(1, 2), FEATURE, tf.constant([[5.0, 6.0], [7.0, 8.0]]))
    rows = by_key(store.export_rows())
    assert rows[0, 1] == ([5.0, 6.0, *values[2:]], *counters)
    assert rows[0, 2] == ([7.0, 8.0, 0.0, 0.0, 0.0, 0.0], 0, 0)


def test_of_equal_keys_the_last_write_wins(make_store):
    store = make_store()
    weights = np.arange(8000.0).reshape(-1, 2)
    keys = tf.tile(tf.range(10, dtype=tf.int64), [400])
    store.write(keys, FEATURE, tf.constant(weights, tf.float32))
    np.testing.assert_array_equal(store.read(keys[:10], FEATURE), weights[-10:])


def test_a_removed_key_starts_anew(make_store):
    store = make_store(optimizer=ADAM)
    train(store, ids(1, 2), np.ones((2, 2)))
    assert int(store.remove(ids(1, 3, 1), FEATURE)) == 1
    assert int(store.remove(ids(2), tf.constant([1]))) == 0
    assert read(store, ids(1)) == [[0.0, 0.0]]
    assert store.lookup(ids(1), FEATURE)[0].numpy().tolist() == [[1.0, 1.0]]
    assert list(by_key(store.export_rows())) == [(0, 2)]


def test_an_export_leaves_out_rows_that_were_only_looked_up(make_store):
    store = make_store()
    store.lookup(ids(1, 2), FEATURE)
    store.write(ids(2), FEATURE, tf.zeros((1, 2)))
    assert by_key(store.export_rows()) == {(0, 2): ([0.0, 0.0], 0, 0)}
    stats = store.stats()
    assert (stats["rows"], stats["known_rows"]) == (2, 1)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"])
def test_training_goes_on_from_imported_rows_to_the_bit(make_store, kind):
    rng = np.random.default_rng(0)
    options = {
        "optimizer": SparseOptimizer(kind, bias_correction="row"),
        "initializer": UNIFORM,
        "dim": 3,
    }
    store = make_store(**options)
    features = tf.constant([0, 1])

    def step(target, seed):
        rng = np.random.default_rng(seed)
        keys = tf.constant(rng.integers(-50, 50, 64))
        train(target, keys, rng.normal(size=(64, 3)), features, learning_rate=0.1)

    for seed in range(5):
        step(store, seed)
    copy = make_store(**options, num_threads=1)
    step(copy, 99)  # All of this has to go.
    rows = store.export_rows()
    shuffled = rng.permutation(len(rows.ids))
    copy.import_rows(Rows(*(tf.gather(column, shuffled) for column in rows)), step=5)
    assert by_key(copy.export_rows()) == by_key(rows)
    for seed in range(5, 10):
        step(store, seed)
        step(copy, seed)
    assert by_key(copy.export_rows()) == by_key(store.export_rows())
    assert copy.stats()["step"] == store.stats()["step"] == 10


def test_an_import_drops_gradients_that_wait(make_store):
    store = make_store()
    train(store, ids(1), [[2.0, 2.0]])
    saved = store.export_rows()
    _, ticket = store.lookup(ids(1), FEATURE)
    _, still_open = store.lookup(ids(2), FEATURE)
    store.update(ticket, tf.ones((1, 2)), 0.5)
    store.import_rows(saved, step=1)
    assert by_key(store.export_rows()) == {(0, 1): ([0.0, 0.0], 1, 1)}
    del still_open


def test_nothing_can_be_exported_and_imported(make_store):
    store = make_store()
    train(store, ids(1), [[2.0, 2.0]])
    store.import_rows(make_store().export_rows(), step=0)
    assert store.stats()["rows"] == store.stats()["step"] == 0


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_config_forecasts_the_row_that_the_store_makes(make_store, kind, dim):
    store = make_store(dim=dim, optimizer=SparseOptimizer(kind))
    train(store, tf.range(1000, dtype=tf.int64), np.zeros((1000, dim)))
    stats = store.stats()
    assert store.export_rows().values.shape == (1000, store.config.num_floats)
    assert stats["row_bytes"] == store.config.row_bytes
    assert stats["memory_bytes"] >= 1000 * store.config.row_bytes


def test_a_seed_is_a_word_of_64_bits_however_it_is_written(make_store):
    starts = {
        seed: make_store(initializer=UNIFORM, feature_seeds=(seed,))
        .lookup(ids(1, 2, 3), FEATURE)[0]
        .numpy()
        .tobytes()
        for seed in (-1, 2**64 - 1, INT64.min, 2**63, 0)
    }
    assert starts[-1] == starts[2**64 - 1]
    assert starts[INT64.min] == starts[2**63]
    assert len(set(starts.values())) == 3
