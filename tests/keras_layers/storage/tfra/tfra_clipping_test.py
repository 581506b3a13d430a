"""CowClip on `TfraStorage` and `HybridStorage`, against rows in a dict."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_layers import TableConfig
from tfctr_ops import RowInitializer, SparseOptimizer

DIM, ANY_STEP = 3, tf.constant(-1, tf.int64)
RULE = SparseOptimizer("adagrad", 0.5, clip_ratio=0.4, clip_floor=0.02, l2_penalty=0.01)
START = np.full(DIM, 0.3), np.full(DIM, RULE.initial_accumulator_value)


class Reference:
    """Rows by (feature, id), moved as the formulas say."""

    def __init__(self, rule):
        self.rule, self.rows, self.updated, self.clipped = rule, {}, 0, 0

    def step(self, *lookups):
        sums, samples = {}, {}
        for ids, features, counts, gradients in lookups:
            for i, id_ in enumerate(ids):
                key = features[i % len(features)], id_
                if key[0] >= 0:
                    sums[key] = sums.get(key, 0) + gradients[i]
                    samples[key] = samples.get(key, 0) + counts[i]
        for key, gradient in sums.items():
            self.move(key, gradient, samples[key])

    def move(self, key, g, count):
        w, a = self.rows.get(key, START)
        self.updated += 1
        if self.rule.clip_ratio is not None:
            length = np.linalg.norm(w)
            limit = count * max(self.rule.clip_ratio * length, self.rule.clip_floor)
            self.clipped += int(np.linalg.norm(g) > limit)
            g = g * min(1, limit / np.linalg.norm(g))
        if count or self.rule.clip_ratio is None:
            g = g + 2 * self.rule.l2_penalty * w
        a = a + g**2
        w = w - self.rule.learning_rate * g / np.sqrt(a + self.rule.epsilon)
        self.rows[key] = w, a


@pytest.fixture(params=["tfra_storage", "small_hybrid_storage"])
def open_table(request):
    def open_table(rule):
        start = RowInitializer("constant", 0.3)
        config = TableConfig("ads", dim=DIM, optimizer=rule, initializer=start)
        return request.getfixturevalue(request.param)().open(config, (1, 2))

    return open_table


def make_lookup(seed, n=40):
    """Ids, features, of which some are absent, counts and gradients."""
    rng = np.random.default_rng(seed)
    ids, features = rng.integers(0, 15, n), rng.integers(-1, 2, n // 2)
    return ids, features, rng.integers(0, 3, n), rng.normal(size=(n, DIM)) * 0.3


def train(table, *lookups, counted=True):
    """One step, of one lookup or several."""
    tickets = []
    for ids, features, counts, _ in lookups:
        keys = tf.constant(ids, tf.int64), tf.constant(features, tf.int32)
        given = tf.constant(counts, tf.int32) if counted else None
        tickets.append(table.lookup(*keys, ANY_STEP, given)[1])
    for ticket, (*_, gradients) in zip(tickets, lookups, strict=True):
        table.update(ticket, tf.constant(gradients, tf.float32), RULE.learning_rate)


def assert_rows(table, reference):
    rows = table.save_rows()
    keys = zip(rows.features.numpy(), rows.ids.numpy(), strict=True)
    found = dict(zip(keys, rows.values.numpy(), strict=True))
    assert found.keys() == reference.rows.keys()
    for key, row in reference.rows.items():
        np.testing.assert_allclose(
            found[key], np.concatenate(row), rtol=2e-5, atol=1e-6
        )


def assert_told(table, reference):
    stats = table.stats()
    assert stats["updated_rows"] == reference.updated
    assert stats["clipped_rows"] == reference.clipped
    assert stats["clipped_share"] == reference.clipped / reference.updated


@pytest.mark.parametrize("num_lookups", [1, 2])
def test_rows_move_by_clipped_gradients_and_a_penalty(open_table, num_lookups):
    table, reference = open_table(RULE), Reference(RULE)
    assert table.stats()["clipped_share"] == 0.0
    for step in range(6):
        lookups = [make_lookup(10 * step + i) for i in range(num_lookups)]
        train(table, *lookups)
        reference.step(*lookups)
    assert_rows(table, reference)
    assert_told(table, reference)
    assert 0 < reference.clipped < reference.updated


def test_a_key_counts_once_for_each_occurrence_if_nobody_says(open_table):
    table, reference = open_table(RULE), Reference(RULE)
    for lookups in ([make_lookup(1)], [make_lookup(2), make_lookup(3)]):
        train(table, *lookups, counted=False)
        reference.step(*((i, f, np.ones_like(c), g) for i, f, c, g in lookups))
    assert_rows(table, reference)
    assert_told(table, reference)


def test_without_a_ratio_nothing_is_clipped(open_table):
    rule = dataclasses.replace(RULE, clip_ratio=None, clip_floor=0.0)
    table, reference = open_table(rule), Reference(rule)
    for step in range(3):
        train(table, make_lookup(step))
        reference.step(make_lookup(step))
    assert_rows(table, reference)
    assert_told(table, reference)
    assert table.stats()["clipped_rows"] == 0
