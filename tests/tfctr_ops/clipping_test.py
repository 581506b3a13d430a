"""Clipping as CowClip does, and the L2 penalty after it, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import RowInitializer, SparseOptimizer

FEATURE = tf.constant([0])
UNIFORM = RowInitializer("uniform", -0.5, 1.0)
INFINITY = float("inf")
KINDS = ("sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl")

# Rows, gradients and counts; the last id is in no sample.
WEIGHTS = [[0.03, 0.04], [0.0, 0.0], [3e-6, 4e-6], [0.3, 0.4]]
GRADIENTS = [[3.0, 4.0], [3e-4, 4e-4], [0.0, 0.0], [0.003, 0.004]]
COUNTS = [2, 3, 1, 0]


def cow_clip(weights, gradients, counts, optimizer):
    """The gradients that the rest of the optimizer sees, row by row in float32."""
    adjusted = []
    rows = np.array(weights, "float32"), np.array(gradients, "float32"), counts
    for w, g, count in zip(*rows, strict=True):
        longest = max(optimizer.clip_ratio * np.linalg.norm(w), optimizer.clip_floor)
        clip, length = np.float32(count * longest), np.linalg.norm(g)
        if length > clip:
            g = g * (clip / length)
        penalty = 2 * np.float32(optimizer.l2_penalty) * w
        adjusted.append(g + penalty if count else g)
    return np.array(adjusted)


def gradient_of(make_store, weights, gradients, counts, **clip):
    """What SGD with a learning rate of 1 takes off rows, and the store."""
    dim = len(weights[0])
    store = make_store(dim=dim, optimizer=SparseOptimizer("sgd", **clip))
    ids = tf.range(len(weights), dtype=tf.int64)
    store.write(ids, FEATURE, tf.constant(weights, tf.float32))
    _, ticket = store.lookup(ids, FEATURE, counts=tf.constant(counts))
    store.update(ticket, tf.constant(gradients, tf.float32), 1.0)
    return np.array(weights, "float32") - store.read(ids, FEATURE).numpy(), store


@pytest.mark.parametrize(
    "ratio, l2_penalty, expected",
    [
        (1.0, 0.0, [[0.06, 0.08], [1.8e-5, 2.4e-5], [0, 0], [0, 0]]),
        (0.5, 0.0, [[0.03, 0.04], [1.8e-5, 2.4e-5], [0, 0], [0, 0]]),
        (1.0, 1e-3, [[0.06006, 0.08008], [1.8e-5, 2.4e-5], [6e-9, 8e-9], [0, 0]]),
    ],
)
def test_worked_example(make_store, ratio, l2_penalty, expected):
    clip = {"clip_ratio": ratio, "clip_floor": 1e-5, "l2_penalty": l2_penalty}
    actual, store = gradient_of(make_store, WEIGHTS, GRADIENTS, COUNTS, **clip)
    # Of weights near 0.5, a float keeps 3e-8.
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=3e-8)
    # Of the third, whose weights are near zero, all but the last digits.
    np.testing.assert_allclose(actual[2], expected[2], rtol=1e-4)
    by_formula = cow_clip(WEIGHTS, GRADIENTS, COUNTS, SparseOptimizer("sgd", **clip))
    np.testing.assert_allclose(by_formula, expected, rtol=2e-6)
    stats = store.stats()
    assert (stats["updated_rows"], stats["clipped_rows"]) == (4, 3)
    assert stats["clipped_share"] == 0.75


@pytest.mark.parametrize(
    "clip",
    [
        {"clip_ratio": INFINITY},
        {"clip_ratio": INFINITY, "clip_floor": 1.0},
        {"clip_ratio": INFINITY, "clip_floor": INFINITY},
        {"clip_ratio": 0.0, "clip_floor": INFINITY},
        {"clip_ratio": 1.0, "clip_floor": INFINITY},
    ],
)
def test_an_infinite_ratio_or_floor_clips_nothing(make_store, clip):
    weights, gradients = [[0.0, 0.0], [1.0, 2.0]] * 2, [[3.0, 4.0]] * 2 + [[0, 0]] * 2
    actual, store = gradient_of(make_store, weights, gradients, [1] * 4, **clip)
    assert actual.tolist() == gradients
    assert store.stats()["clipped_share"] == 0.0
    # A key that is in no sample has no gradient even so.
    actual, _ = gradient_of(make_store, weights, gradients, [0] * 4, **clip)
    assert actual.tolist() == [[0, 0]] * 4


def test_invariants(make_store):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(200, 5)).astype("float32")
    weights[::7] = 0
    gradients = rng.normal(size=(200, 5)) * 10 ** rng.uniform(-3, 3, (200, 1))
    gradients[::5] = 0
    counts = rng.integers(1, 4, 200).astype("int32")

    def clipped(gradients, counts):
        # From weights of zero, what is taken off can be told to the bit.
        clip = {"clip_ratio": 1e-6, "clip_floor": 0.5}
        return gradient_of(make_store, weights * 0, gradients, counts, **clip)[0]

    once, limits = clipped(gradients, counts), counts * 0.5
    before, after = np.linalg.norm(gradients, axis=1), np.linalg.norm(once, axis=1)
    assert (once[::5] == 0).all()
    assert (after <= limits * (1 + 1e-6)).all()
    short = before < limits
    assert 20 < short.sum() < 180
    np.testing.assert_array_equal(once[short], gradients[short].astype("float32"))
    directions = np.einsum("ij,ij->i", once, gradients)
    np.testing.assert_allclose(directions, before * after, rtol=1e-5)
    np.testing.assert_allclose(clipped(once, counts), once, rtol=1e-6)
    # A limit of twice the length for twice the samples.
    np.testing.assert_allclose(clipped(2 * gradients, 2 * counts), 2 * once, rtol=1e-6)
    expected = cow_clip(
        weights, gradients, counts, SparseOptimizer("sgd", clip_ratio=0.5)
    )
    actual, _ = gradient_of(make_store, weights, gradients, counts, clip_ratio=0.5)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def some_steps(dim, num_steps=6, batch=300, num_keys=120):
    """Ids with duplicates, their gradients, and counts of 0 and more."""
    rng = np.random.default_rng(2)
    for _ in range(num_steps):
        scales = 10.0 ** rng.uniform(-2, 1, (batch, 1))
        yield (
            rng.integers(0, num_keys, batch),
            (rng.normal(size=(batch, dim)) * scales).astype("float32"),
            rng.integers(0, 3, batch).astype("int32"),
        )


def train(store, ids, gradients, counts):
    _, ticket = store.lookup(tf.constant(ids), FEATURE, counts=counts)
    store.update(ticket, tf.constant(gradients), store.config.optimizer.learning_rate)


def rows_of(store):
    rows = store.export_rows()
    order = np.lexsort([rows.ids, rows.features])
    return [column.numpy()[order] for column in rows]


@pytest.mark.parametrize("clip_linear, expected", [(True, 0.5), (False, 4.0)])
def test_rows_of_one_weight_are_clipped_when_asked(make_store, clip_linear, expected):
    clip = {"clip_ratio": 0.0, "clip_floor": 0.5, "clip_linear": clip_linear}
    actual, store = gradient_of(make_store, [[8.0]], [[4.0]], [1], **clip)
    assert actual.tolist() == [[expected]]
    assert store.stats()["clipped_rows"] == clip_linear
    wide, _ = gradient_of(make_store, [[0.0, 0.0]], [[3.0, 4.0]], [1], **clip)
    np.testing.assert_allclose(wide, [[0.3, 0.4]], rtol=1e-6)


@pytest.mark.parametrize("dim", [1, 10, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_takes_the_clipped_gradient(make_store, kind, dim):
    options = {"learning_rate": 0.05, "weight_decay": 0.1}
    clip = {"clip_ratio": 0.7, "clip_floor": 0.2, "l2_penalty": 0.05}
    clipping = SparseOptimizer(kind, **options, **clip)
    store = make_store(dim=dim, optimizer=clipping, initializer=UNIFORM)
    plain = SparseOptimizer(kind, **options)
    expected = make_store(dim=dim, optimizer=plain, initializer=UNIFORM)
    for ids, gradients, counts in some_steps(dim):
        train(store, ids, gradients, counts)
        distinct, places = np.unique(ids, return_inverse=True)
        sums = np.zeros((len(distinct), dim), "float32")
        np.add.at(sums, places, gradients)
        samples = np.bincount(places, weights=counts)
        weights, ticket = expected.lookup(tf.constant(distinct), FEATURE)
        adjusted = cow_clip(weights, sums, samples, clipping)
        expected.update(ticket, tf.constant(adjusted), plain.learning_rate)
    assert 0.1 < store.stats()["clipped_share"] < 0.9
    actual, wanted = rows_of(store), rows_of(expected)
    np.testing.assert_allclose(actual[2], wanted[2], rtol=1e-4, atol=1e-5)
    for column in (0, 1, 3, 4):
        np.testing.assert_array_equal(actual[column], wanted[column])


def clipping_store(make_store, **options):
    optimizer = SparseOptimizer(
        "adam", learning_rate=0.05, clip_ratio=0.7, clip_floor=0.2, l2_penalty=0.05
    )
    return make_store(dim=6, optimizer=optimizer, initializer=UNIFORM, **options)


def same(a, b):
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def test_over_an_ssd_rows_are_the_same_to_the_bit(make_store, tmp_path):
    in_ram = clipping_store(make_store)
    over_ssd = clipping_store(
        make_store,
        limit_bytes=20 * in_ram.config.row_bytes,
        eviction_policy="clock",
        ssd_directory=str(tmp_path),
    )
    for ids, gradients, counts in some_steps(dim=6):
        over_ssd.prefetch(tf.constant(ids), FEATURE)
        for store in (in_ram, over_ssd):
            train(store, ids, gradients, counts)
    assert over_ssd.stats()["evicted_rows"] > 100
    assert same(rows_of(in_ram), rows_of(over_ssd))
    for name in ("updated_rows", "clipped_rows", "clipped_share"):
        assert in_ram.stats()[name] == over_ssd.stats()[name] > 0


def test_several_lookups_of_a_step_are_clipped_as_one(make_store):
    whole, in_parts = clipping_store(make_store), clipping_store(make_store)
    for ids, gradients, counts in some_steps(dim=6):
        train(whole, ids, gradients, counts)
        parts = [slice(0, 90), slice(90, 91), slice(91, 300)]
        tickets = [
            in_parts.lookup(tf.constant(ids[p]), FEATURE, counts=counts[p])[1]
            for p in parts
        ]
        for part, ticket in reversed(list(zip(parts, tickets, strict=True))):
            in_parts.update(ticket, gradients[part], 0.05)
    assert same(rows_of(whole), rows_of(in_parts))
    assert whole.stats()["clipped_rows"] == in_parts.stats()["clipped_rows"]


def test_without_counts_each_occurrence_is_a_sample(make_store):
    weights = [[0.0, 0.0]]
    store = make_store(optimizer=SparseOptimizer("sgd", clip_ratio=1, clip_floor=0.5))
    ids = tf.constant([0, 0, 0], tf.int64)
    store.write(ids[:1], FEATURE, tf.constant(weights))
    _, ticket = store.lookup(ids, FEATURE)
    store.update(ticket, tf.constant([[3.0, 4.0]] * 3), 1.0)
    np.testing.assert_allclose(store.read(ids[:1], FEATURE), [[-0.9, -1.2]], rtol=1e-6)


def test_a_snapshot_does_not_depend_on_the_clip(make_store, tmp_path):
    store = clipping_store(make_store)
    for ids, gradients, counts in some_steps(dim=6):
        train(store, ids, gradients, counts)
    store.save(str(tmp_path / "saved"))
    plain = make_store(dim=6, optimizer=SparseOptimizer("adam"), initializer=UNIFORM)
    plain.restore(str(tmp_path / "saved"), [0, 1])
    assert same(rows_of(plain), rows_of(store))
    # What a table did, it did since it was opened.
    assert plain.stats()["updated_rows"] == 0
    assert plain.stats()["clipped_share"] == 0.0
