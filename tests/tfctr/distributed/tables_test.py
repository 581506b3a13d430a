"""What else a layer does with tables over two ranks, beside what one process does."""

import warnings

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
from tfctr.distributed import ReplicatedStorage, ShardedStorage, engine
from tfctr_ops import SparseOptimizer

IDS = np.arange(40)


def sgd(name="ads", dim=2, **options):
    return TableConfig(name, dim, keras.optimizers.SGD(1.0), seed=3, **options)


def make_layer(table, storage=ShardedStorage, **options):
    layer = DynamicEmbedding(table, storage=storage(**options))
    layer.build((None, 1))
    return layer


def own(ids):
    """The part of this rank."""
    rank, ranks, count = engine.rank(), engine.size(), int(ids.shape[0])
    return ids[rank * count // ranks : (rank + 1) * count // ranks]


@tf.function(reduce_retracing=True)
def step(layers, ids, factor):
    """A step of tables whose gradients are their rows, times a factor."""
    with tf.GradientTape() as tape:
        parts = [layer(ids, training=True) for layer in layers]
        loss = sum(tf.reduce_sum(part**2) for part in parts) / 2 * factor
    weights = [layer.trainable_variables for layer in layers]
    tape.gradient(loss, weights)


def train(layers, ids=IDS, factor=0.5, steps=3):
    # The mean of the ranks: each counts as many times as there are ranks.
    for _ in range(steps):
        step(
            layers, tf.constant(own(ids)[:, None]), tf.constant(factor * engine.size())
        )


def read(layer, ids=IDS, feature=0):
    return layer.read_rows(ids, feature=feature).numpy().tolist()


def two_layers_of_one_name():
    layers = [make_layer(sgd()), make_layer(sgd())]
    train(layers)
    return [read(layer) for layer in layers]


def one_layer_twice():
    layer = make_layer(sgd())
    train([layer, layer], factor=0.25)
    return read(layer)


def replicated_twice():
    layer = make_layer(sgd(), ReplicatedStorage)
    train([layer, layer], factor=0.25)
    return read(layer)


def tables_of_several_widths():
    features = {
        "user": FeatureConfig(sgd("é-1", 2)),
        "item": FeatureConfig(sgd("è-1", 3)),
        "words": FeatureConfig(sgd("words", 2), combiner="mean", padding_id=0),
    }
    layer = DynamicEmbedding(features, storage=ShardedStorage())
    words = tf.ragged.constant([[1, 2, 1], [], [0], [5]])
    inputs = {"user": tf.constant([7, 8, 7, 9]), "item": tf.constant([7, 7, 8, 8])}
    for _ in range(2):
        with tf.GradientTape() as tape:
            batch = {name: own(part) for name, part in inputs.items()}
            outputs = layer({**batch, "words": own(words)}, training=True)
            loss = sum(tf.reduce_sum(out**2) for out in outputs.values())
            loss *= 0.1 * engine.size()
        tape.gradient(loss, layer.trainable_variables)
    return [read(layer, range(10), feature=name) for name in features]


def tables_of_one_width(storage=ShardedStorage):
    """Which travel together, though they differ in all that a table may."""
    features = {
        "plain": FeatureConfig(sgd("plain")),
        "counted": FeatureConfig(sgd("counted", admission=CountAdmission(4))),
        "skips": FeatureConfig(sgd("skips", bad_gradients="skip")),
        "wide": FeatureConfig(sgd("wide", 3), combiner="sum"),
    }
    layer = DynamicEmbedding(features, storage=storage())
    ids = np.array([3, 3, 3, 4, 5, 5, 3, 6, 3, 5])
    for of_skips in (1.0, np.nan, 1.0):
        with tf.GradientTape() as tape:
            part = tf.constant(own(ids))
            wide = tf.stack([part, part + 1], 1)
            inputs = {"plain": part, "counted": part, "skips": part, "wide": wide}
            outputs = layer(inputs, training=True)
            # Bad on one rank alone.
            factor = of_skips if engine.rank() == engine.size() - 1 else 1.0
            losses = [tf.reduce_sum(out**2) for out in outputs.values()]
            loss = losses[0] + losses[1] + losses[2] * factor + losses[3]
        tape.gradient(loss * 0.02 * engine.size(), layer.trainable_variables)
    return [read(layer, range(8), feature=name) for name in features]


def half_wires_of_one_width():
    """Gradients of very different size, some of them bad, in half of the bits."""
    return [
        *two_sizes(ShardedStorage(wire_dtype="float16")),
        *two_sizes(ShardedStorage(wire_dtype="bfloat16")),
    ]


def two_sizes(storage):
    """Rows of two tables, in the size of their gradients."""
    # Powers of two, which no wire rounds.
    sizes = {"large": 2.0**20, "small": 2.0**-20}
    tables = (sgd("large"), sgd("small", bad_gradients="skip"))
    features = {table.name: FeatureConfig(table) for table in tables}
    layer = DynamicEmbedding(features, storage=storage)
    layer.build(dict.fromkeys(features, (None,)))
    ids = np.arange(8)
    for name in sizes:
        # A first row would hide what becomes of the small gradients.
        layer.write_rows(ids, np.zeros((8, 2)), feature=name)
    for factor in (1.0, np.nan, 1.0):
        with tf.GradientTape() as tape:
            outputs = layer(dict.fromkeys(sizes, tf.constant(own(ids))), training=True)
            large, small = (
                tf.reduce_sum(outputs[name]) * size for name, size in sizes.items()
            )
            loss = large + small * factor
        tape.gradient(loss * engine.size(), layer.trainable_variables)
    return [
        (np.array(read(layer, ids, feature=name)) / size).tolist()
        for name, size in sizes.items()
    ]


def rows_are_clipped(storage=ShardedStorage):
    """By the samples of all ranks, where an id may stand twice in one."""
    clip = SparseOptimizer("sgd", 1.0, clip_ratio=0.5, l2_penalty=0.01)
    table = TableConfig("ads", 2, clip, seed=3)
    feature = FeatureConfig(table, combiner="sum")
    layer = DynamicEmbedding(feature, storage=storage())
    ids = np.array([[3, 3], [3, 4], [4, 5], [5, 6], [3, 6], [3, 3], [7, 8]])
    for _ in range(3):
        with tf.GradientTape() as tape:
            rows = layer(tf.constant(own(ids)), training=True)
            loss = tf.reduce_sum(rows[:, 0] * 5 - rows[:, 1]) * engine.size()
        tape.gradient(loss, layer.trainable_variables)
    clipped = layer.stats()["ads"]["clipped_rows"]
    if storage is ShardedStorage:
        clipped = sum(engine.gather_objects(clipped, "clipped"))
    assert clipped == 18  # Each row in each step.
    return read(layer, range(9), feature=None)


def replicas_are_clipped():
    return rows_are_clipped(ReplicatedStorage)


def replicas_of_one_width():
    return tables_of_one_width(ReplicatedStorage)


def exchanges(storage):
    """How often ranks exchange something in a step of three tables of two widths."""
    widths = {"a": 2, "b": 2, "c": 3}
    features = {name: FeatureConfig(sgd(name, dim)) for name, dim in widths.items()}
    layer = DynamicEmbedding(features, storage=storage())
    layer.build(dict.fromkeys(features, (None,)))

    @tf.function
    def train(ids):
        with tf.GradientTape() as tape:
            outputs = layer(dict.fromkeys(features, ids), training=True)
            loss = sum(tf.reduce_sum(out) for out in outputs.values())
        tape.gradient(loss, layer.trainable_variables)

    graph = train.get_concrete_function(tf.TensorSpec([None], tf.int64)).graph
    return sum(op.type.startswith("Horovod") for op in graph.get_operations())


def empty_batches():
    layer = make_layer(sgd())
    train([layer], ids=IDS[:1])
    return read(layer)


def strings():
    layer = make_layer(sgd())
    names = np.array(["a", "b", "c", "d"])
    with tf.GradientTape() as tape:
        rows = layer(tf.constant(own(names)[:, None]), training=True)
        loss = tf.reduce_sum(rows) * engine.size()
    tape.gradient(loss, layer.trainable_variables)
    return read(layer, names)


def rows_by_hand():
    layer = make_layer(sgd())
    layer.write_rows(IDS, np.stack([IDS, -IDS], 1), feature=0)
    removed = layer.tables["ads"].remove(tf.constant(IDS[:10]), tf.constant([0]))
    counts = [int(removed), layer.size(), len(list(layer.export(1000))[0][1])]
    counts = np.sum(engine.gather_objects(counts, "counts"), axis=0)
    return [read(layer), counts.tolist()]


def sums():
    layer = make_layer(sgd(), reduction="sum")
    train([layer], factor=0.5 / engine.size())
    return read(layer)


def bad_gradients_are_skipped():
    layer = make_layer(sgd(bad_gradients="skip"))
    train([layer], steps=1)
    factor = np.nan if engine.rank() == engine.size() - 1 else 1.0
    step([layer], tf.constant(own(IDS)[:, None]), tf.constant(factor))
    train([layer], steps=1)
    skipped = {layer.stats()["ads"]["skipped_updates"]}
    return [read(layer), sorted(skipped)]


def a_step_is_skipped_by_an_owner_of_none_of_its_rows():
    layer = make_layer(sgd(bad_gradients="skip"))
    train([layer], ids=IDS, steps=1)
    for factor in (np.nan, 1.0):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([[5], [5]]), training=True))
        tape.gradient(loss * factor, layer.trainable_variables)
    stats = layer.stats()["ads"]
    return [read(layer), [stats["step"], stats["skipped_updates"]]]


def rows_expire():
    layer = make_layer(sgd(expiry=Expiry(every=None, unused_steps=1)))
    train([layer], steps=1)
    train([layer], ids=IDS[:20], steps=3)
    expired = sum(engine.gather_objects(layer.expire(), "expired"))
    return [read(layer), expired]


def ids_are_counted():
    layer = make_layer(sgd(admission=CountAdmission(3)))
    train([layer], steps=2)  # No row yet.
    before = sum(engine.gather_objects(layer.size(), "size"))
    train([layer], steps=2)
    return [before, read(layer)]


def rows_come_up_from_disk(path):
    ids = np.arange(20_000)
    # Of each rank's rows, the first are the first to leave memory.
    layer = make_layer(sgd(dim=64), inner=TieredStorage("1MB", path))
    layer.write_rows(ids, np.stack([ids] * 64, 1), feature=0)
    table = layer.tables["ads"]
    # After which nothing is left to be written: what is not in memory is on disk.
    table.begin_save(f"{path}/saved", path)
    table.finish_save("")
    reads = [table.stats()["rows_read"]]
    layer.prefetch(ids[:100, None])  # All ranks name all of them.
    reads.append(table.stats()["rows_read"])
    rows = layer(tf.constant(own(ids[:100])[:, None]), training=True)
    reads.append(table.stats()["rows_read"])
    owned = int(table.remove(tf.constant(ids[:100]), tf.constant([0])))
    return [rows.numpy()[:, 0, 0].tolist(), np.diff(reads).tolist(), owned]


EQUAL = (
    two_layers_of_one_name,
    one_layer_twice,
    replicated_twice,
    tables_of_several_widths,
    empty_batches,
    strings,
    rows_by_hand,
    sums,
    rows_expire,
    ids_are_counted,
    a_step_is_skipped_by_an_owner_of_none_of_its_rows,
    tables_of_one_width,
    replicas_of_one_width,
    rows_are_clipped,
    replicas_are_clipped,
    half_wires_of_one_width,
)


def scenarios(directory):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = {scenario.__name__: scenario() for scenario in EQUAL}
    found["warned"] = [str(warning.message) for warning in caught]
    found["exchanges"] = [exchanges(ShardedStorage), exchanges(ReplicatedStorage)]
    found["bad_gradients_are_skipped"] = bad_gradients_are_skipped()
    found["rows_come_up_from_disk"] = rows_come_up_from_disk(f"{directory}/ssd")
    return found


@pytest.fixture(scope="module")
def found(tables_of_ranks):
    return tables_of_ranks(__file__)


def assert_close(value, expected):
    if isinstance(value, list) and value and isinstance(value[0], list):
        assert len(value) == len(expected)
        for one, other in zip(value, expected, strict=True):
            assert_close(one, other)
    else:
        np.testing.assert_allclose(value, expected, 1e-5, 1e-6)


@pytest.mark.multiprocess
@pytest.mark.parametrize("scenario", EQUAL, ids=lambda scenario: scenario.__name__)
def test_two_ranks_do_what_one_process_does(found, scenario):
    expected = scenario()
    for of_rank in found:
        value = of_rank[scenario.__name__]
        for one, other in zip(value, expected, strict=True):
            assert_close(one, other)


@pytest.mark.multiprocess
def test_ranks_whose_dense_weights_nobody_has_seen_are_warned_once(found):
    for of_rank in found:
        told = [text for text in of_rank["warned"] if "nothing of tfctr" in text]
        assert len(told) == 1 and "DistributedOptimizer(optimizer)" in told[0]


@pytest.mark.multiprocess
def test_tables_of_one_width_travel_together(found):
    # Keys, rows and gradients of each width; keys, their number and gradients.
    assert [of_rank["exchanges"] for of_rank in found] == [[6, 6], [6, 6]]


@pytest.mark.multiprocess
def test_a_bad_gradient_on_one_rank_makes_all_skip(found):
    layer = make_layer(sgd(bad_gradients="skip"))
    train([layer], steps=2)
    for of_rank in found:
        rows, skipped = of_rank["bad_gradients_are_skipped"]
        assert_close(rows, read(layer))
        assert skipped == [1]


@pytest.mark.multiprocess
def test_each_rank_brings_its_own_rows_up(found):
    rows, num_owned = [], 0
    for of_rank in found:
        own_rows, (by_prefetch, by_lookup), owned = of_rank["rows_come_up_from_disk"]
        assert by_prefetch == owned > 0
        assert by_lookup == 0
        rows += own_rows
        num_owned += owned
    assert rows == list(range(100))
    assert num_owned == 100
