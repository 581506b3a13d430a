"""`SparseOptimizer`: each fused update against NumPy and against Keras."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers.sparse_conversion import to_sparse_optimizer
from tfctr_ops import RowInitializer, SparseOptimizer

FEATURE = tf.constant([0])
UNIFORM = RowInitializer("uniform", -0.5, 1.0)

# One line per variant; every check below runs on all of them.
VARIANTS = {
    "sgd": {},
    "sgd, decay": {"weight_decay": 0.1},
    "adagrad": {"learning_rate": 0.05},
    "adagrad, decay": {"learning_rate": 0.05, "weight_decay": 0.1},
    "adagrad, start": {"initial_accumulator_value": 0.0, "epsilon": 1e-3},
    "rowwise_adagrad": {"learning_rate": 0.05},
    "rowwise_adagrad, decay": {"learning_rate": 0.05, "weight_decay": 0.1},
    "adam": {},
    "adam, row": {"bias_correction": "row"},
    "adam, betas": {"beta_1": 0.0, "beta_2": 0.5, "epsilon": 1e-3},
    "adam, decay": {"weight_decay": 0.1, "bias_correction": "row"},
    "ftrl": {"learning_rate": 0.05},
    "ftrl, l1": {"learning_rate": 0.05, "l1": 0.3},
    "ftrl, l2": {"learning_rate": 0.05, "l2": 0.2},
    "ftrl, shrinkage": {"learning_rate": 0.05, "l2_shrinkage": 0.1},
    "ftrl, beta": {"learning_rate": 0.05, "beta": 0.5},
    "ftrl, power": {"learning_rate": 0.05, "learning_rate_power": -0.3},
    "ftrl, power 0": {"learning_rate": 0.05, "learning_rate_power": 0.0},
    "ftrl, all": {
        "learning_rate": 0.05,
        "initial_accumulator_value": 0.5,
        "weight_decay": 0.1,
        "l1": 0.05,
        "l2": 0.2,
        "l2_shrinkage": 0.1,
        "beta": 0.5,
    },
}


def optimizer_of(variant):
    return SparseOptimizer(variant.split(",")[0], **VARIANTS[variant])


class Reference:
    """One row, updated by the documented formulas, each operation in float32."""

    def __init__(self, optimizer, weights):
        self.o, self.w, self.count = optimizer, np.array(weights, "float32"), 0
        start = np.float32(optimizer.initial_accumulator_value)
        zeros = np.zeros_like(self.w)
        self.slots = {
            "sgd": [],
            "adagrad": [zeros + start],
            "rowwise_adagrad": [np.full(1, start)],
            "adam": [zeros.copy(), zeros.copy()],
            "ftrl": [zeros + start, zeros.copy()],
        }[optimizer.kind]

    def update(self, g, step):
        self.count += 1
        rate, decay = np.float32(self.o.learning_rate), np.float32(self.o.weight_decay)
        self.w *= np.float32(1) - rate * decay
        getattr(self, self.o.kind)(g, rate, step)

    def sgd(self, g, rate, step):
        self.w -= rate * g

    def adagrad(self, g, rate, step):
        (a,) = self.slots
        a += g * g
        self.w -= rate * g / np.sqrt(a + np.float32(self.o.epsilon))

    def rowwise_adagrad(self, g, rate, step):
        (a,) = self.slots
        a += np.mean(g * g)
        self.w -= rate / np.sqrt(a + np.float32(self.o.epsilon)) * g

    def adam(self, g, rate, step):
        m, v = self.slots
        beta_1, beta_2 = self.o.beta_1, self.o.beta_2
        t = self.count if self.o.bias_correction == "row" else step
        rate = np.float32(rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t))
        m += np.float32(1 - beta_1) * (g - m)
        v += np.float32(1 - beta_2) * (g * g - v)
        self.w -= rate * m / (np.sqrt(v) + np.float32(self.o.epsilon))

    def ftrl(self, g, rate, step):
        n, z = self.slots
        o = self.o
        l1, l2, shrinkage, beta = np.float32([o.l1, o.l2, o.l2_shrinkage, o.beta])
        before = self.raised(n)
        n += g * g
        after = self.raised(n)
        z += g + 2 * shrinkage * self.w - (after - before) / rate * self.w
        clipped = np.clip(z, -l1, l1)
        self.w[:] = (clipped - z) / (after / rate + 2 * l2 + beta / rate)

    def raised(self, n):
        power = np.float32(-self.o.learning_rate_power)
        if power == 0.5:
            return np.sqrt(n)
        return (n.astype("float64") ** power.astype("float64")).astype("float32")


def batches(steps, batch=200, num_keys=150):
    """Ids with duplicates; some keys come late, some rest for a while."""
    rng = np.random.default_rng(1)
    for step in range(1, steps + 1):
        yield step, rng.integers(0, num_keys * step // steps, batch)


@pytest.mark.parametrize("dim", [1, 3, 16, 37])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_follow_the_documented_formulas(make_store, variant, dim):
    optimizer = optimizer_of(variant)
    store = make_store(dim=dim, optimizer=optimizer, initializer=UNIFORM)
    rng = np.random.default_rng(0)
    rows = {}
    for step, ids in batches(steps=12):
        gradients = rng.normal(size=(len(ids), dim)).astype("float32")
        before, ticket = store.lookup(tf.constant(ids), FEATURE)
        store.update(ticket, gradients, optimizer.learning_rate)
        for id_ in np.unique(ids):
            occurrences = ids == id_
            if id_ not in rows:
                start = before.numpy()[occurrences][0]
                rows[id_] = Reference(optimizer, start)
            total = np.zeros(dim, "float32")
            for gradient in gradients[occurrences]:
                total += gradient
            rows[id_].update(total, step)

    exported = store.export_rows()
    assert sorted(exported.ids.numpy()) == sorted(rows)
    actual = exported.values.numpy()
    expected = np.array(
        [np.concatenate([rows[i].w, *rows[i].slots]) for i in exported.ids.numpy()]
    )
    counts = [rows[i].count for i in exported.ids.numpy()]
    assert exported.counts.numpy().tolist() == counts
    if variant == "ftrl, power":
        # The C library's power may miss the nearest float; linear terms reach 30.
        np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-5)
    elif optimizer.kind == "rowwise_adagrad":
        # NumPy takes the mean in another order.
        np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-7)
    else:
        np.testing.assert_array_equal(actual, expected)


def keras_optimizers():
    """One line per optimizer that `to_sparse_optimizer` converts, and per option."""
    k = keras.optimizers
    return {
        "SGD": k.SGD(0.1),
        "SGD, decay": k.SGD(0.1, weight_decay=0.05),
        "Adagrad": k.Adagrad(0.05),
        "Adagrad, options": k.Adagrad(0.05, 0.3, epsilon=1e-3, weight_decay=0.05),
        "Adam": k.Adam(0.01),
        "Adam, options": k.Adam(0.01, 0.8, 0.95, epsilon=1e-3, weight_decay=0.05),
        "AdamW": k.AdamW(0.01),
        "AdamW, options": k.AdamW(0.01, weight_decay=0.1, beta_1=0.5),
        "Ftrl": k.Ftrl(0.05),
        "Ftrl, options": k.Ftrl(
            0.05,
            learning_rate_power=-0.4,
            initial_accumulator_value=0.3,
            l1_regularization_strength=0.05,
            l2_regularization_strength=0.1,
            l2_shrinkage_regularization_strength=0.02,
            beta=0.3,
        ),
    }


@pytest.mark.parametrize("name", keras_optimizers())
def test_rows_touched_every_step_move_as_under_keras(make_store, name):
    optimizer = keras_optimizers()[name]
    sparse = to_sparse_optimizer(optimizer)
    num_keys, dim = 30, 9
    store = make_store(dim=dim, optimizer=sparse, initializer=UNIFORM)
    everyone = tf.range(num_keys, dtype=tf.int64)
    weights = keras.Variable(store.lookup(everyone, FEATURE)[0])
    rng = np.random.default_rng(0)
    for _ in range(20):
        ids = rng.permutation(np.r_[0:num_keys, rng.integers(0, num_keys, 40)])
        gradients = rng.normal(size=(len(ids), dim)).astype("float32")
        _, ticket = store.lookup(tf.constant(ids), FEATURE)
        store.update(ticket, gradients, sparse.learning_rate)
        # Keras itself would not sum the gradients of equal rows.
        summed = np.zeros((num_keys, dim), "float32")
        np.add.at(summed, ids, gradients)
        optimizer.apply([tf.constant(summed)], [weights])
        actual = store.read(everyone, FEATURE)
        np.testing.assert_allclose(actual, weights.numpy(), rtol=2e-5, atol=2e-6)


# Worked examples.


def train_one(store, gradients, learning_rate):
    for gradient in gradients:
        _, ticket = store.lookup(tf.constant([1], tf.int64), FEATURE)
        dim = store.config.dim
        store.update(ticket, tf.fill((1, dim), tf.constant(gradient)), learning_rate)
    return store.export_rows().values.numpy()[0]


@pytest.mark.parametrize("kind", ["adagrad", "rowwise_adagrad"])
def test_adagrad_accumulates_before_it_divides(make_store, kind):
    # Dividing by the old accumulator would give 0.6598564.
    store = make_store(
        dim=12,
        initializer=RowInitializer("constant", 0.7306),
        optimizer=SparseOptimizer(kind, initial_accumulator_value=0.01, epsilon=1e-10),
    )
    row = train_one(store, [0.6039, 0.4478, 0.2304], learning_rate=0.01)
    np.testing.assert_allclose(row[:12], 0.7119234, rtol=1e-6)
    np.testing.assert_allclose(row[12:], 0.6283042, rtol=1e-6)


@pytest.mark.parametrize("rest", [0, 1, 1000])
@pytest.mark.parametrize("gradient", [3.0, -0.001])
def test_a_rows_own_bias_correction_makes_its_first_move_one_learning_rate(
    make_store, rest, gradient
):
    adam = SparseOptimizer("adam", bias_correction="row", epsilon=1e-12)
    store = make_store(optimizer=adam)
    pass_steps(store, rest)
    row = train_one(store, [gradient], learning_rate=0.01)
    np.testing.assert_allclose(row[:2], 1.0 - 0.01 * np.sign(gradient), rtol=1e-6)


def test_global_bias_correction_makes_late_rows_move_further(make_store):
    store = make_store(optimizer=SparseOptimizer("adam", epsilon=1e-12))
    pass_steps(store, 999)
    row = train_one(store, [2.0], learning_rate=0.01)
    np.testing.assert_allclose((1.0 - row[:2]) / 0.01, 2.51, atol=0.005)


def pass_steps(store, steps):
    """Empty batches: the table ages, its rows do not."""
    for _ in range(steps):
        rows, ticket = store.lookup(tf.zeros([0], tf.int64), FEATURE)
        store.update(ticket, rows, 0.01)


def test_l1_holds_small_ftrl_weights_at_zero(make_store):
    store = make_store(
        optimizer=SparseOptimizer("ftrl", l1=10.0),
        initializer=RowInitializer("constant", 0.0),
    )
    row = train_one(store, [0.5, -0.25, 0.5], learning_rate=0.1)
    assert row[:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_without_a_gradient_rest(make_store, variant):
    optimizer = optimizer_of(variant)
    store = make_store(optimizer=optimizer)
    train_one(store, [1.0, 2.0], optimizer.learning_rate)
    before = [column.numpy().tobytes() for column in store.export_rows()]
    other = tf.constant([2], tf.int64)
    for _ in range(3):
        _, ticket = store.lookup(other, FEATURE)
        store.update(ticket, tf.ones((1, 2)), optimizer.learning_rate)
    store.remove(other, FEATURE)
    assert [column.numpy().tobytes() for column in store.export_rows()] == before


@pytest.mark.parametrize(
    "kind, floats",
    [("sgd", 0), ("adagrad", 6), ("rowwise_adagrad", 1), ("adam", 12), ("ftrl", 12)],
)
def test_slots_are_counted(kind, floats):
    assert SparseOptimizer(kind).num_slot_floats(6) == floats


# Errors.

AT_LEAST_0 = [
    "learning_rate",
    "epsilon",
    "weight_decay",
    "initial_accumulator_value",
    "l1",
    "l2",
    "l2_shrinkage",
    "beta",
    "l2_penalty",
]
NAN = float("nan")


@pytest.mark.parametrize(
    "option, value, message",
    [
        (
            "kind",
            "rmsprop",
            "`kind` must be one of 'sgd', 'adagrad', 'rowwise_adagrad', 'adam', "
            "'ftrl'. Received: kind='rmsprop'.",
        ),
        (
            "bias_correction",
            "none",
            "`bias_correction` must be one of 'global', 'row'. "
            "Received: bias_correction='none'.",
        ),
        ("beta_1", 1.0, "`beta_1` must lie in [0, 1). Received: beta_1=1.0."),
        ("beta_2", -0.1, "`beta_2` must lie in [0, 1). Received: beta_2=-0.1."),
        ("beta_2", NAN, "`beta_2` must lie in [0, 1). Received: beta_2=nan."),
        *(
            (
                name,
                value,
                f"`{name}` must be a finite number, not negative. "
                f"Received: {name}={value}.",
            )
            for name in AT_LEAST_0
            for value in (-0.5, NAN, float("inf"))
        ),
        *(
            (
                name,
                value,
                f"`{name}` must not be negative; infinity clips nothing. "
                f"Received: {name}={value}.",
            )
            for name in ("clip_ratio", "clip_floor")
            for value in (-0.5, NAN)
        ),
        (
            "clip_floor",
            1e-5,
            "`clip_floor` is a part of clipping, which a `clip_ratio` asks for. "
            "Received: clip_floor=1e-05, clip_ratio=None. Give a clip_ratio, such as "
            "1.0, or no clip_floor.",
        ),
        (
            "clip_linear",
            1,
            "`clip_linear` must be True or False. Received: clip_linear=1.",
        ),
        (
            "learning_rate_power",
            0.5,
            "`learning_rate_power` must be a finite number, not positive. "
            "Received: learning_rate_power=0.5.",
        ),
    ],
)
def test_values_out_of_range_are_refused(option, value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SparseOptimizer(**{"kind": "ftrl", option: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "adam", "epsilon": 0.0}, "`epsilon` of 'adam' must be above 0"),
        (
            {"kind": "adagrad", "epsilon": 0.0, "initial_accumulator_value": 0.0},
            "Received: epsilon=0.0, initial_accumulator_value=0.0.",
        ),
        (
            {"kind": "ftrl", "initial_accumulator_value": 0.0},
            "Received: initial_accumulator_value=0.0, l2=0.0, beta=0.0.",
        ),
    ],
)
def test_a_denominator_of_zero_is_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SparseOptimizer(**arguments)
