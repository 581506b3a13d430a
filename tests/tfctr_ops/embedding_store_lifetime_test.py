"""Stores end with their Python objects, budgets and tickets with their last tensor.

A store gives its bytes back to the budget when it ends. So each test lets one budget
that has room for one store be filled again and again.
"""

import gc

import psutil
import pytest
import tensorflow as tf

from tfctr_ops import MemoryBudget, library

FEATURE = tf.constant([0])
IDS = tf.range(100, dtype=tf.int64)
ROOM = 100 * 32


def fill(store):
    return store.lookup(IDS, FEATURE)


def has_room(make_store, budget):
    try:
        fill(make_store(budget=budget))
    except tf.errors.ResourceExhaustedError:
        return False
    return True


def training_step(store):
    @tf.function
    def step():
        rows, ticket = fill(store)
        return store.update(ticket, rows, 0.5)

    return step


def raw_fill(handle):
    no_belief, no_counts = tf.constant(-1, tf.int64), tf.zeros([0], tf.int32)
    return library.load().tfctr_embedding_store_lookup(
        handle, IDS, FEATURE, no_belief, no_counts, dim=2
    )


def test_a_store_ends_with_its_python_object(make_store):
    budget = MemoryBudget(ROOM)
    for _ in range(20):
        store = make_store(budget=budget)
        fill(store)
        assert not has_room(make_store, budget)
        del store
    assert has_room(make_store, budget)


def test_a_ticket_keeps_its_store_even_after_its_update(make_store):
    # Memory that a gradient may still write to must not go away.
    budget = MemoryBudget(ROOM)
    store = make_store(budget=budget)
    rows, ticket = fill(store)
    store.update(ticket, rows, 0.5)
    del store
    assert not has_room(make_store, budget)
    del ticket
    assert has_room(make_store, budget)


def test_a_ticket_may_outlive_everything_else(make_store):
    budget = MemoryBudget(ROOM)
    _, ticket = fill(make_store(budget=budget))
    del budget
    gc.collect()
    del ticket


def test_a_budget_lives_as_long_as_a_store_that_uses_it(make_store):
    store = make_store(budget=MemoryBudget(ROOM))
    gc.collect()
    fill(store)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=f"ram={ROOM} bytes"):
        store.lookup(IDS + 1, FEATURE)


def test_a_function_keeps_the_store_it_uses_and_lets_go_of_it(make_store):
    budget = MemoryBudget(ROOM)
    step = training_step(make_store(budget=budget))
    step()
    gc.collect()
    assert not has_room(make_store, budget)
    # The function still has the same table.
    assert int(step()) == 2
    del step
    gc.collect()
    assert has_room(make_store, budget)


def test_a_graph_that_tensorflow_keeps_for_good_keeps_no_rows(make_store):
    budget = MemoryBudget(ROOM)

    def use(store):
        @tf.custom_gradient
        def rows(x):
            return x * fill(store)[0], tf.reduce_sum

        tf.function(lambda: rows(tf.constant(1.0)))()
        assert not has_room(make_store, budget)

    for _ in range(3):
        use(make_store(budget=budget))
        gc.collect()
    assert has_room(make_store, budget)


def test_what_outlives_the_python_object_is_told_so(make_store):
    function = training_step(make_store()).get_concrete_function()
    gc.collect()
    message = (
        "This function uses a table whose layer is gone, and the rows with it. Keep "
        "the layer, or its model, for as long as functions that were made from it."
    )
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        function()


def test_a_store_made_while_tracing_ends_with_the_function(make_store):
    budget = MemoryBudget(ROOM)
    made = []

    @tf.function
    def step():
        if not made:
            made.append(make_store(budget=budget))
        rows, ticket = fill(made[0])
        return made[0].update(ticket, rows, 0.5)

    # One table for all calls, not a new one for each.
    assert [int(step()) for _ in range(3)] == [1, 2, 3]
    assert not has_room(make_store, budget)
    made.clear()
    del step
    gc.collect()
    assert has_room(make_store, budget)


def test_a_store_made_in_a_graph_ends_with_the_run(make_store, raw_store):
    budget = MemoryBudget(ROOM)

    @tf.function
    def run():
        return raw_fill(raw_store(budget.handle))[0]

    for _ in range(20):
        run()
    assert has_room(make_store, budget)


def test_a_store_made_in_a_loop_ends_with_its_turn(make_store, raw_store):
    budget = MemoryBudget(ROOM)

    def turn(i):
        raw_fill(raw_store(budget.handle))
        return (i + 1,)

    @tf.function
    def run():
        return tf.while_loop(lambda i: i < 20, turn, (0,), parallel_iterations=1)

    run()
    run()
    assert has_room(make_store, budget)


def test_tickets_of_a_loop_end_with_their_turn(make_store):
    budget = MemoryBudget(ROOM)

    def train(store):
        @tf.function
        def run():
            for i in tf.range(100):
                rows, ticket = fill(store)
                if i % 2 == 0:  # The others are dropped without a gradient.
                    store.update(ticket, rows, 0.5)

        run()
        assert store.stats()["step"] == 50

    train(make_store(budget=budget))
    gc.collect()
    assert has_room(make_store, budget)


def test_a_graph_that_is_given_a_handle_does_not_keep_it(make_store, raw_store):
    budget = MemoryBudget(ROOM)

    @tf.function
    def run(handle):
        return raw_fill(handle)[0]

    for _ in range(3):
        handle = raw_store(budget.handle)
        run(handle)
        assert not has_room(make_store, budget)
        del handle
        assert has_room(make_store, budget)


def test_errors_leave_nothing_behind(make_store):
    budget = MemoryBudget(ROOM)
    store = make_store(budget=budget)
    for _ in range(20):
        _, ticket = fill(store)
        with pytest.raises(tf.errors.InvalidArgumentError, match="gradients.shape"):
            store.update(ticket, tf.ones((3, 2)), 0.5)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="is full"):
            store.lookup(IDS + 1, FEATURE)
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
            store.update(ticket, tf.fill((100, 2), float("nan")), 0.5)
    del store, ticket
    gc.collect()  # The tracebacks held them, too.
    assert has_room(make_store, budget)


def test_the_memory_of_ended_stores_goes_back_to_the_system(make_store):
    ids = tf.range(20_000, dtype=tf.int64)

    def use():
        store = make_store(dim=64)
        rows, ticket = store.lookup(ids, FEATURE)
        store.update(ticket, rows, 0.5)
        assert store.stats()["memory_bytes"] > 5_000_000

    def resident_bytes():
        gc.collect()
        return psutil.Process().memory_info().rss

    for _ in range(10):
        use()  # TensorFlow's own pools reach their size.
    before = resident_bytes()
    for _ in range(40):
        use()
    # Forty stores are above 200 MB.
    assert resident_bytes() - before < 50_000_000


@pytest.mark.parametrize("kind", ["graph", "function"])
def test_a_store_ends_amid_a_graph(make_store, kind):
    budget = MemoryBudget(ROOM)
    stores = [make_store(budget=budget)]
    fill(stores[0])
    if kind == "graph":
        with tf.Graph().as_default():  # As `tf.saved_model.save` does.
            stores.clear()
    else:
        tf.function(stores.clear).get_concrete_function()
    assert has_room(make_store, budget)
