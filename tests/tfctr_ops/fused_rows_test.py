"""`update_fused_rows` against an `EmbeddingStore` with the same rows."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import (
    EmbeddingStore,
    RowInitializer,
    Rows,
    SparseOptimizer,
    StoreConfig,
    update_fused_rows,
)

DIM = 5
RULES = {
    "sgd": SparseOptimizer("sgd", weight_decay=0.1),
    "adagrad": SparseOptimizer("adagrad", l2_penalty=0.01),
    "rowwise_adagrad": SparseOptimizer("rowwise_adagrad"),
    "adam": SparseOptimizer("adam", weight_decay=0.01),
    "adam per row": SparseOptimizer("adam", bias_correction="row"),
    "ftrl": SparseOptimizer("ftrl", l1=0.01, beta=0.1),
    "clipping": SparseOptimizer("adam", clip_ratio=1.5, clip_floor=1e-3),
}


def whole(values, features, updates, last_steps):
    counters = np.stack([features, updates, last_steps], axis=1).astype("int32")
    return np.concatenate([values, counters.view("float32")], axis=1)


# Above 2048 rows there are several tasks, and above 64 several blocks of each.
@pytest.mark.parametrize("n", [0, 1, 65, 4500])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rows_move_as_those_of_a_store(rule, n):
    rng = np.random.default_rng(n)
    store = EmbeddingStore(
        StoreConfig(
            "users", DIM, rule, RowInitializer("constant"), (1, 2, 3), (0.0,) * DIM
        )
    )
    ids, features = np.arange(n) * 7 - 3, rng.integers(0, 3, n).astype("int32")
    values = rng.uniform(0.1, 1.0, (n, store.config.num_floats)).astype("float32")
    last_steps, updates = rng.integers(1, 9, n), rng.integers(1, 9, n)
    store.import_rows(Rows(ids, features, values, last_steps, updates), 8)
    gradients = rng.normal(size=(n, DIM)).astype("float32")
    samples = rng.integers(0, 3, n).astype("int32")

    moved, num_clipped = update_fused_rows(
        rule,
        # The counters of the rows themselves are not looked at.
        whole(values, features + 9, updates + 9, last_steps + 9),
        gradients,
        features,
        updates.astype("int32"),
        samples if rule.clip_ratio else samples[:0],
        0.05,
        9,
    )

    # A key each, as features repeat over ids.
    tickets = []
    if rule.clip_ratio:
        _, ticket = store.lookup(ids, features, 8, counts=samples)
    else:
        _, ticket = store.lookup(ids, features, 8)
    tickets.append(ticket)
    store.update(ticket, gradients, 0.05)
    rows, known = store.read_rows(ids, features)
    assert known.numpy().all()
    expected = whole(rows.values, features, rows.counts, rows.last_steps)
    np.testing.assert_array_equal(moved.numpy(), expected)
    assert int(num_clipped) == store.stats()["clipped_rows"]
    if rule.clip_ratio and n > 1:
        assert 0 < int(num_clipped) < n


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", tf.zeros((2, 8))),
        ("gradients", tf.zeros((1, 4))),
        ("features", tf.zeros([1], tf.int32)),
        ("updates", tf.zeros([3], tf.int32)),
        ("samples", tf.zeros([0], tf.int32)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name, value):
    two = tf.zeros([2], tf.int32)
    arguments = {
        "rows": tf.zeros((2, 4 + 4 + 3)),
        "gradients": tf.zeros((2, 4)),
        "features": two,
        "updates": two,
        "samples": two,
    }
    rule = SparseOptimizer("adagrad", clip_ratio=1.0)
    update_fused_rows(rule, **arguments, learning_rate=0.1, step=1)
    arguments[name] = value
    shape = ",".join(map(str, value.shape))
    received = re.escape(f"{name}.shape=[{shape}]")
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"must be \(m, dim \+ slots \+ 3\).*Received: .*{received}",
    ):
        update_fused_rows(rule, **arguments, learning_rate=0.1, step=1)


def test_a_graph_knows_the_shapes():
    @tf.function(input_signature=[tf.TensorSpec([None, 7]), tf.TensorSpec([None, 4])])
    def move(rows, gradients):
        some = tf.zeros([tf.shape(rows)[0]], tf.int32)
        rule = SparseOptimizer("sgd")
        return update_fused_rows(rule, rows, gradients, some, some, some, 0.1, 1)

    moved, num_clipped = move.get_concrete_function().structured_outputs
    assert moved.shape.as_list() == [None, 7]
    assert num_clipped.shape == []
