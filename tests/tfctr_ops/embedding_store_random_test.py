"""Random operations on a store give what they give on a dict.

All numbers are small multiples of powers of two, so sums are exact in any order and
the two must agree to the bit.
"""

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import Rows

DIM = 3
FEATURES = 3
ROW = 24 + 4 * 4  # Bytes of a row, an even number of floats.


class Model:
    """A dict from (feature, id) to weights, last step and count, under SGD."""

    def __init__(self, default):
        self.rows, self.step, self.default = {}, 0, default

    def weights(self, keys, unknown):
        """What keys read, if those without a row read `unknown`."""
        rows = [
            np.zeros(DIM) if key[0] < 0 else self.rows.get(key, (unknown,))[0]
            for key in keys
        ]
        return np.array(rows, "float32").reshape(-1, DIM)

    def lookup(self, keys):
        return self.weights(keys, np.ones(DIM))

    def read(self, keys):
        return self.weights(keys, self.default)

    def update(self, reports, learning_rate):
        sums = {}
        for keys, gradients in reports:
            for key, gradient in zip(keys, gradients, strict=True):
                sums[key] = sums.get(key, 0) + gradient
        self.step += bool(reports)
        for key, total in sums.items():
            if key[0] >= 0:
                weights, _, count = self.rows.get(key, (np.ones(DIM), 0, 0))
                weights = weights - learning_rate * total
                self.rows[key] = (weights, self.step, count + 1)

    def write(self, keys, weights):
        for key, row in zip(keys, weights, strict=True):
            if key[0] >= 0:
                self.rows[key] = (row, *self.rows.get(key, (None, 0, 0))[1:])

    def remove(self, keys):
        return sum(self.rows.pop(key, None) is not None for key in keys)


class Pair:
    """A store and its model, which every operation treats alike and compares."""

    def __init__(self, make_store, seed, evicts, **options):
        self.rng = np.random.default_rng(seed)
        self.evicts = evicts
        default = np.arange(1.0, DIM + 1)
        self.make = lambda: make_store(
            dim=DIM,
            feature_seeds=tuple(range(FEATURES)),
            default_row=tuple(default),
            num_threads=int(self.rng.integers(0, 3)),
            **options,
        )
        self.store, self.model = self.make(), Model(default)

    def run(self, operations):
        names = ["train", "read", "write", "remove", "move", "prefetch", "rows", "put"]
        odds = [0.4, 0.1, 0.1, 0.1, 0.05, 0.1, 0.05, 0.1]
        for name in self.rng.choice(names, operations, p=odds):
            getattr(self, name)()
            if self.evicts:
                self.forget_evicted()
        self.compare()

    def keys(self):
        """A batch: the tensors for the store, and the same keys for the model."""
        num_features = int(self.rng.integers(1, 5))
        # Above 2048 keys several threads share the work.
        most = 3000 if self.rng.random() < 0.1 else 60
        n = int(self.rng.integers(0, most)) * num_features
        ids = self.rng.zipf(1.3, n) % 500 - 250
        ids[self.rng.random(n) < 0.02] = np.iinfo(np.int64).min
        features = self.rng.integers(-1, FEATURES, num_features, "int32")
        pairs = list(zip(np.resize(features, n).tolist(), ids.tolist(), strict=True))
        return (tf.constant(ids, tf.int64), tf.constant(features)), pairs

    def values(self, n):
        return self.rng.integers(-2, 3, (n, DIM)).astype("float32")

    def train(self):
        tickets, reports = [], []
        # A row that a second lookup evicts starts anew, which the model cannot know.
        for _ in range(1 if self.evicts else self.rng.integers(1, 4)):
            tensors, pairs = self.keys()
            rows, ticket = self.store.lookup(*tensors, expected_step=self.model.step)
            np.testing.assert_array_equal(rows, self.model.lookup(pairs))
            tickets.append((ticket, pairs, self.values(len(pairs))))
        learning_rate = float(self.rng.choice([0.25, 0.5]))
        for i in self.rng.permutation(len(tickets)):
            ticket, pairs, gradients = tickets[i]
            if self.rng.random() < 0.9:
                step = self.store.update(ticket, gradients, learning_rate)
                assert int(step) == self.model.step + 1
                reports.append((pairs, gradients))
        self.model.update(reports, learning_rate)

    def read(self):
        tensors, pairs = self.keys()
        np.testing.assert_array_equal(self.store.read(*tensors), self.model.read(pairs))

    def write(self):
        tensors, pairs = self.keys()
        weights = self.values(len(pairs))
        self.store.write(*tensors, weights)
        self.model.write(pairs, weights)

    def remove(self):
        tensors, pairs = self.keys()
        known = self.store.stats()["known_rows"]
        removed = int(self.store.remove(*tensors))
        assert removed == known - self.store.stats()["known_rows"]
        assert removed == self.model.remove(pairs)

    def rows(self):
        (ids, features), pairs = self.keys()
        rows, known = self.store.read_rows(ids, features)
        assert known.numpy().tolist() == [pair in self.model.rows for pair in pairs]
        for i, pair in enumerate(pairs):
            weights, last_step, count = self.model.rows.get(pair, (np.zeros(DIM), 0, 0))
            assert rows.values[i].numpy().tolist() == list(weights)
            assert (rows.last_steps[i], rows.counts[i]) == (last_step, count)

    def put(self):
        _, pairs = self.keys()
        pairs = [pair for pair in pairs if pair[0] >= 0]
        n = len(pairs)
        self.model.step += int(self.rng.integers(0, 3))
        last_steps = self.rng.integers(0, self.model.step + 1, n)
        rows = Rows(
            tf.constant([id_ for _, id_ in pairs], tf.int64),
            tf.constant([feature for feature, _ in pairs], tf.int32),
            self.values(n),
            last_steps,
            self.rng.integers(0, 9, n),
        )
        self.store.put_rows(rows, self.model.step)
        columns = (rows.values, rows.last_steps, rows.counts)
        self.model.rows |= dict(zip(pairs, zip(*columns, strict=True), strict=True))

    def prefetch(self):
        tensors, _ = self.keys()
        self.store.prefetch(*tensors)

    def move(self):
        """Goes on with a copy of the store."""
        rows, self.store = self.store.export_rows(), self.make()
        self.store.import_rows(rows, self.model.step)

    def exported(self):
        rows = [column.numpy() for column in self.store.export_rows()]
        ids, features, *values = rows
        keys = zip(features.tolist(), ids.tolist(), strict=True)
        found = dict(zip(keys, zip(*values, strict=True), strict=True))
        assert len(found) == len(ids)
        return found

    def compare(self):
        found = self.exported()
        assert found.keys() == self.model.rows.keys()
        for key, (weights, last_step, count) in self.model.rows.items():
            assert found[key][0].tolist() == list(weights)
            assert found[key][1:] == (last_step, count)
        stats = self.store.stats()
        assert (stats["known_rows"], stats["step"]) == (len(found), self.model.step)

    def forget_evicted(self):
        found = self.exported().keys()
        assert found <= self.model.rows.keys()
        self.model.rows = {key: self.model.rows[key] for key in found}


BUDGETS = {
    "unlimited": {},
    "ample": {"limit_bytes": 10_000 * ROW},
    "clock": {"limit_bytes": 300 * ROW, "eviction_policy": "clock"},
    "clock, below a batch": {"limit_bytes": 5 * ROW, "eviction_policy": "clock"},
    "lru": {"limit_bytes": 300 * ROW, "eviction_policy": "lru"},
    "lfu": {"limit_bytes": 300 * ROW, "eviction_policy": "lfu"},
}
# Over an SSD tier, no row is ever lost, however few fit into memory.
SSD_BUDGETS = {"10 %": 100 * ROW, "1 %": 10 * ROW, "none": 0, "all": 10_000 * ROW}


def over_ssd(tmp_path, budget, policy="clock"):
    return {
        "limit_bytes": SSD_BUDGETS[budget],
        "eviction_policy": policy,
        "ssd_directory": str(tmp_path),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", SSD_BUDGETS)
def test_a_store_over_ssd_behaves_as_a_dict(make_store, tmp_path, budget, seed):
    Pair(make_store, seed, False, **over_ssd(tmp_path, budget)).run(120)


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_store_over_ssd_behaves_as_a_dict_whatever_leaves(
    make_store, tmp_path, policy
):
    Pair(make_store, 3, False, **over_ssd(tmp_path, "10 %", policy)).run(120)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("policy", ["clock", "lru", "lfu"])
@pytest.mark.parametrize("budget", SSD_BUDGETS)
def test_a_store_over_ssd_behaves_as_a_dict_for_long(
    make_store, tmp_path, budget, policy, seed
):
    Pair(make_store, seed, False, **over_ssd(tmp_path, budget, policy)).run(2000)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_store_behaves_as_a_dict(make_store, budget, seed):
    evicts = "eviction_policy" in BUDGETS[budget]
    Pair(make_store, seed, evicts, **BUDGETS[budget]).run(120)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_store_behaves_as_a_dict_for_long(make_store, budget, seed):
    evicts = "eviction_policy" in BUDGETS[budget]
    Pair(make_store, seed, evicts, **BUDGETS[budget]).run(2000)


@pytest.mark.parametrize("policy", ["clock", "lru", "lfu"])
def test_eviction_took_place(make_store, policy):
    pair = Pair(make_store, 0, True, **BUDGETS[policy])
    pair.run(60)
    assert pair.store.stats()["evicted_rows"] > 0
