"""Which rows leave: against a dict, in every tier, through fit and every saving."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import (
    CountAdmission,
    DynamicEmbedding,
    Expiry,
    FeatureConfig,
    TableConfig,
    TieredStorage,
)

DIM, RATE = 2, 0.5
RULES = {
    "unused": Expiry(every=4, unused_steps=6),
    "near zero": Expiry(every=3, min_norm=0.8),
    "too many": Expiry(every=2, max_rows=30),
    "all": Expiry(every=5, unused_steps=9, min_norm=0.2, max_rows=40),
}
RULE = pytest.mark.parametrize("expiry", RULES.values(), ids=RULES)
STORAGES = {
    "ram": lambda _: TieredStorage(),
    "ram, one thread": lambda _: TieredStorage(num_threads=1),
    "ssd": lambda directory: TieredStorage("1KB", directory / "ssd"),
}
STORAGE = pytest.mark.parametrize("kind", STORAGES)


def make_layer(expiry, storage=None, **options):
    table = TableConfig(
        "ads", DIM, keras.optimizers.SGD(RATE), "ones", 1, expiry=expiry, **options
    )
    layer = DynamicEmbedding(FeatureConfig(table), storage, name="embedding")
    layer.build((None,))
    return layer


def train(layer, ids, gradients):
    with tf.GradientTape() as tape:
        rows = layer(tf.constant(ids), training=True)
        loss = tf.reduce_sum(rows * gradients)
    tape.gradient(loss, layer.trainable_variables)


def batch(step):
    rng = np.random.default_rng(step)
    ids = np.unique(rng.zipf(1.4, 20) % 150)
    return ids, rng.normal(size=(len(ids), DIM)).astype("float32")


def rows_of(layer):
    return {
        id: row.tobytes()
        for _, ids, rows in layer.export(10**6)
        for id, row in zip(ids.tolist(), rows, strict=True)
    }


class Oracle:
    """A dict from id to weights and the last update."""

    def __init__(self, rule):
        self.rule, self.rows, self.step, self.expired = rule, {}, 0, 0

    def train(self, ids, gradients):
        self.step += 1
        for id, gradient in zip(ids.tolist(), gradients, strict=True):
            weights, _ = self.rows.get(id, (np.ones(DIM, "float32"), 0))
            moved = weights - np.float32(RATE) * gradient
            self.rows[id] = (moved, self.step)
        if self.step % self.rule.every == 0:
            self.expire()

    def expire(self):
        rule, before = self.rule, len(self.rows)
        for id, (weights, last) in list(self.rows.items()):
            unused = rule.unused_steps and self.step - last > rule.unused_steps
            norm = np.linalg.norm(weights.astype("float64"))
            if unused or norm < (rule.min_norm or 0):
                del self.rows[id]
        self.expired += before - len(self.rows)


@STORAGE
@pytest.mark.parametrize("name", ["unused", "near zero"])
def test_rows_leave_as_from_a_dict(name, kind, tmp_path):
    layer, oracle = (
        make_layer(RULES[name], STORAGES[kind](tmp_path)),
        Oracle(RULES[name]),
    )
    for step in range(60):
        train(layer, *batch(step))
        oracle.train(*batch(step))
        assert layer.size() == len(oracle.rows)
    expected = {id: row.tobytes() for id, (row, _) in oracle.rows.items()}
    assert rows_of(layer) == expected
    assert layer.stats()["ads"]["expired_rows"] == oracle.expired > 20


@STORAGE
def test_of_too_many_rows_the_longest_unused_leave(kind, tmp_path):
    layer = make_layer(RULES["too many"], STORAGES[kind](tmp_path))
    last = {}
    for step in range(1, 61):
        ids, gradients = batch(step)
        train(layer, ids, gradients)
        last.update(dict.fromkeys(ids.tolist(), step))
        if step % 2 == 0:
            left = list(rows_of(layer))
            assert len(left) == min(len(last), 30)
            gone = [last[id] for id in last if id not in left]
            assert max(gone, default=0) <= min(last[id] for id in left)
            last = {id: last[id] for id in left}
    assert layer.stats()["ads"]["expired_rows"] > 20


@RULE
def test_results_do_not_depend_on_the_storage(expiry, tmp_path):
    layers = [make_layer(expiry, make(tmp_path)) for make in STORAGES.values()]
    for step in range(60):
        for layer in layers:
            train(layer, *batch(step))
    for layer in layers[1:]:
        assert rows_of(layer) == rows_of(layers[0])


@RULE
@STORAGE
def test_a_restored_snapshot_goes_on_as_the_saved_layer(expiry, kind, tmp_path):
    layer = make_layer(expiry, STORAGES[kind](tmp_path))
    for step in range(33):
        train(layer, *batch(step))
    layer.begin_snapshot(tmp_path / "saved", tmp_path)
    for step in range(33, 66):
        train(layer, *batch(step))
    layer.finish_snapshot()
    other = make_layer(expiry)
    other.restore_snapshot(tmp_path / "saved")
    for step in range(33, 66):
        train(other, *batch(step))
    assert rows_of(other) == rows_of(layer)


def test_expire_looks_now_and_tells_how_many_rows_left():
    layer = make_layer(Expiry(every=None, unused_steps=2))
    for id in range(5):
        train(layer, [id], np.ones((1, DIM), "float32"))
    assert layer.size() == 5
    assert layer.expire() == 2
    assert sorted(rows_of(layer)) == [2, 3, 4]
    assert layer.expire() == 0


def test_an_expired_id_is_counted_from_the_start():
    expiry = Expiry(every=None, unused_steps=1)
    layer = make_layer(expiry, admission=CountAdmission(2))
    ones = np.ones((1, DIM), "float32")
    for id in (1, 1, 2, 2, 2):
        train(layer, [id], ones)
    assert layer.expire() == 1
    train(layer, [1], ones)
    assert sorted(rows_of(layer)) == [2]
    train(layer, [1], ones)
    assert sorted(rows_of(layer)) == [1, 2]


def test_each_table_has_its_own_greatest_number_of_rows():
    sgd = keras.optimizers.SGD(RATE)
    expiry = Expiry(every=1, max_rows=3)
    layer = DynamicEmbedding(
        {
            name: FeatureConfig(TableConfig(name, DIM, sgd, expiry=expiry))
            for name in ("a", "b")
        }
    )
    ids = {"a": tf.range(10), "b": tf.range(2)}
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(x) for x in layer(ids, training=True).values())
    tape.gradient(loss, layer.trainable_variables)
    assert {name: table.size() for name, table in layer.tables.items()} == {
        "a": 3,
        "b": 2,
    }


@RULE
@STORAGE
def test_a_model_fits(expiry, kind, tmp_path):
    table = TableConfig(
        "ads", DIM, keras.optimizers.Adagrad(0.1), seed=1, expiry=expiry
    )
    layer = DynamicEmbedding(table, STORAGES[kind](tmp_path))
    inputs = keras.Input((2,), dtype="int64")
    logit = keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs)))
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(logit))
    model.compile("sgd", "binary_crossentropy")
    ids = np.random.default_rng(1).zipf(1.3, (600, 2)) % 500
    model.fit(ids, (ids[:, 0] % 2).astype("float32"), epochs=3, verbose=0)
    distinct = sum(len(np.unique(column)) for column in ids.T)
    stats = layer.stats()["ads"]
    assert stats["known_rows"] < distinct
    assert stats["expired_rows"] > 0


@RULE
def test_the_config_of_a_layer_tells_its_expiry(expiry):
    layer = make_layer(expiry)
    json.dumps(layer.get_config()["tables"])
    assert (
        DynamicEmbedding.from_config(layer.get_config()).features[""].table.expiry
        == expiry
    )


def test_a_layer_without_a_rule_says_so():
    message = (
        "Layer 'embedding' expects a built table with a rule of expiry. Received: the "
        "tables ['ads'], none with one. Give them TableConfig(expiry=Expiry(...)), and "
        "call the layer once."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        make_layer(None).expire()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"every": 0},
            "`every` must be a positive integer, or None. Received: every=0.",
        ),
        (
            {"every": 1, "unused_steps": 1.5},
            "`unused_steps` must be a positive integer, or None. Received: "
            "unused_steps=1.5.",
        ),
        (
            {"every": 1, "max_rows": True},
            "`max_rows` must be a positive integer, or None. Received: max_rows=True.",
        ),
        (
            {"every": 1, "min_norm": 0.0},
            "`min_norm` must be a positive number, or None. Received: min_norm=0.0.",
        ),
        (
            {"every": 1, "min_norm": "small"},
            "`min_norm` must be a positive number, or None. "
            "Received: min_norm='small'.",
        ),
        (
            {"every": 1},
            "An Expiry must say which rows leave: give `unused_steps`, `min_norm` or "
            "`max_rows`. Received: None for all of them.",
        ),
    ],
)
def test_values_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Expiry(**arguments)


def test_another_type_is_refused():
    with pytest.raises(TypeError, match=re.escape("Received: expiry=7.")):
        TableConfig("ads", 2, "sgd", expiry=7)
