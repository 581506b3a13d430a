"""Which ids get a row: against a dict, in every tier, through fit and every saving."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import (
    BloomAdmission,
    CountAdmission,
    DynamicEmbedding,
    FeatureConfig,
    ProbabilityAdmission,
    TableConfig,
    TieredStorage,
)
from tfctr_ops import find_damage, read_info

COUNT = CountAdmission(min_count=4)
BLOOM = BloomAdmission(min_count=4, expected_keys=10_000, false_positive_rate=1e-6)
PROBABILITY = ProbabilityAdmission(0.2)
ADMISSIONS = pytest.mark.parametrize(
    "admission", [COUNT, BLOOM, PROBABILITY], ids=["count", "bloom", "probability"]
)
STORAGES = {
    "ram": lambda _: TieredStorage(),
    "ram, one thread": lambda _: TieredStorage(num_threads=1),
    "ssd": lambda directory: TieredStorage("4KB", directory / "ssd"),
}
STORAGE = pytest.mark.parametrize("kind", STORAGES)
DIM, DEFAULT = 4, (9.0,) * 4


def make_layer(admission, storage=None, names=("user", "item"), seed=1):
    optimizer = keras.optimizers.SGD(0.5)
    table = TableConfig(
        "ids", DIM, optimizer, "ones", seed, DEFAULT, admission=admission
    )
    layer = DynamicEmbedding(
        {name: FeatureConfig(table) for name in names}, storage, name="embedding"
    )
    layer.build(dict.fromkeys(names, (None,)))
    return layer


def batch(step, n=60):
    rng = np.random.default_rng(step)
    names = ("user", "item")
    return {name: rng.zipf(1.5, n) % 200 for name in names}


def train(layer, ids):
    """Takes a step whose gradient is one for each value, and returns the rows."""
    with tf.GradientTape() as tape:
        inputs = {name: tf.constant(column) for name, column in ids.items()}
        outputs = layer(inputs, training=True)
        loss = sum(tf.reduce_sum(output) for output in outputs.values())
    tape.gradient(loss, layer.trainable_variables)
    return {name: output.numpy() for name, output in outputs.items()}


def rows_of(layer):
    return {
        (name, id): tuple(row)
        for name, ids, rows in layer.export(10**6)
        for id, row in zip(ids.tolist(), rows, strict=True)
    }


def stats_of(layer):
    return next(iter(layer.stats().values()))


@STORAGE
@pytest.mark.parametrize("admission", [COUNT, BLOOM], ids=["count", "bloom"])
def test_counting_equals_a_dict(admission, kind, tmp_path):
    layer = make_layer(admission, STORAGES[kind](tmp_path))
    counts, rows, refused = {}, {}, 0
    for step in range(30):
        ids = batch(step)
        found = train(layer, ids)
        seen = [(name, id) for name, column in ids.items() for id in column.tolist()]
        for key in seen:
            counts[key] = counts.get(key, 0) + 1
        admitted = {key for key in seen if counts[key] >= 4}
        refused += sum(key not in admitted for key in seen)
        expected = [rows.get(key, 1.0) if key in admitted else 9.0 for key in seen]
        got = np.concatenate([found[name] for name in ids])
        np.testing.assert_array_equal(got, np.repeat(expected, DIM).reshape(-1, DIM))
        for key in seen:
            if key in admitted:
                rows[key] = rows.get(key, 1.0) - 0.5
    named = {(f"ids/{name}", id): (row,) * DIM for (name, id), row in rows.items()}
    assert rows_of(layer) == named
    stats = stats_of(layer)
    assert stats["refused_keys"] == refused
    assert stats["admission_bytes"] > 0
    waiting = len(counts) - len(rows)
    assert stats["tracked_keys"] == (waiting if admission is COUNT else 0)


@STORAGE
def test_probability_admits_as_often_as_it_says_and_can_be_repeated(kind, tmp_path):
    ids = {name: np.arange(5000) for name in ("user", "item")}
    layers = [
        make_layer(PROBABILITY),
        make_layer(PROBABILITY, STORAGES[kind](tmp_path)),
    ]
    for step in (1, 2):
        found = [train(layer, ids) for layer in layers]
        np.testing.assert_array_equal(found[0]["user"], found[1]["user"])
        share = layers[0].size() / 10_000
        expected = 1 - 0.8**step
        deviation = np.sqrt(expected * (1 - expected) / 10_000)
        assert abs(share - expected) < 4 * deviation
    assert rows_of(layers[0]) == rows_of(layers[1])
    other = make_layer(PROBABILITY, seed=2)
    train(other, ids)
    train(other, ids)
    assert rows_of(other) != rows_of(layers[0])


@ADMISSIONS
def test_only_training_counts(admission):
    layer = make_layer(admission)
    ids = {name: tf.zeros(1, tf.int64) for name in ("user", "item")}
    for _ in range(50):
        layer(ids, training=False)
        layer.prefetch(ids)
    assert stats_of(layer)["refused_keys"] == 0
    assert layer.size() == 0
    layer.write_rows([0], np.full((1, DIM), 3.0), "user")
    assert layer(ids, training=True)["user"].numpy().tolist() == [[3.0] * DIM]


@ADMISSIONS
@pytest.mark.parametrize("kinds", ["ram ram", "ram ssd", "ssd ram", "ssd ssd"])
def test_a_restored_snapshot_goes_on_as_the_saved_layer(admission, kinds, tmp_path):
    layers = []
    for index, kind in enumerate(kinds.split()):
        directory = tmp_path / str(index)
        directory.mkdir()
        # The order of the features decides their numbers, and their names do not.
        names = ("user", "item") if index == 0 else ("item", "user")
        storage = STORAGES[kind](directory)
        layers.append(make_layer(admission, storage, names, seed=1 + index))
    layer, other = layers
    for step in range(10):
        train(layer, batch(step))
        train(other, batch(99))
    # Looked up and not trained: without rows in the snapshot.
    layer({name: tf.constant(ids) for name, ids in batch(50).items()}, training=True)
    layer.begin_snapshot(tmp_path / "saved", tmp_path)
    layer.finish_snapshot()
    other.restore_snapshot(tmp_path / "saved")
    for step in range(10, 25):
        expected, got = train(layer, batch(step)), train(other, batch(step))
        for name in expected:
            np.testing.assert_array_equal(got[name], expected[name])
    assert rows_of(other) == rows_of(layer)


@ADMISSIONS
def test_a_loaded_model_goes_on_as_the_saved_one(admission, tmp_path):
    def model_of(layer):
        inputs = {name: keras.Input((), dtype="int64", name=name) for name in layer}
        outputs = make_layer(admission)(inputs)
        added = keras.layers.Add()(list(outputs.values()))
        return keras.Model(inputs, added)

    model = model_of(("user", "item"))
    layer = model.get_layer("embedding")
    for step in range(10):
        train(layer, batch(step))
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras").get_layer("embedding")
    assert loaded.features["user"].table.admission == admission
    weighed = model_of(("user", "item"))
    train(weighed.get_layer("embedding"), batch(99))
    weighed.load_weights(tmp_path / "model.weights.h5")
    for step in range(10, 20):
        expected = train(layer, batch(step))
        for other in (loaded, weighed.get_layer("embedding")):
            got = train(other, batch(step))
            for name in expected:
                np.testing.assert_array_equal(got[name], expected[name])


def test_a_failed_load_leaves_rows_and_counts(tmp_path):
    layer = make_layer(COUNT)
    for step in range(5):
        train(layer, batch(step))
    before = rows_of(layer), layer.tables["ids"].save_admission().tolist()
    store = {}
    layer.save_own_variables(store)
    store["table_0_admission"] = store["table_0_admission"].copy()
    store["table_0_admission"][60] ^= 1
    with pytest.raises(tf.errors.DataLossError, match="'admission of table ids'"):
        layer.load_own_variables(store)
    after = rows_of(layer), layer.tables["ids"].save_admission().tolist()
    assert (after[0], sorted(after[1])) == (before[0], sorted(before[1]))


def test_the_counts_are_a_file_of_the_snapshot_which_is_checked(tmp_path):
    layer = make_layer(COUNT)
    train(layer, batch(1))
    layer.begin_snapshot(tmp_path / "saved", tmp_path)
    report = layer.finish_snapshot()
    table = tmp_path / "saved" / "0"
    file = read_info(str(table)).files[-1]
    assert (file.name, file.rows) == ("ADMISSION", 0)
    path = table / file.name
    assert path.stat().st_size == file.bytes
    assert report["bytes"] == read_info(str(table)).bytes
    assert find_damage(str(table)) == []
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert [str(path) in line for line in find_damage(str(table))] == [True]
    with pytest.raises(
        tf.errors.DataLossError, match=re.escape(f"'{path}' is damaged")
    ):
        layer.restore_snapshot(tmp_path / "saved")


@ADMISSIONS
@STORAGE
def test_a_model_fits(admission, kind, tmp_path):
    table = TableConfig(
        "ads", DIM, keras.optimizers.Adagrad(0.1), seed=1, admission=admission
    )
    layer = DynamicEmbedding(table, STORAGES[kind](tmp_path))
    inputs = keras.Input((2,), dtype="int64")
    logit = keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs)))
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(logit))
    model.compile("sgd", "binary_crossentropy")
    ids = np.random.default_rng(1).zipf(1.3, (600, 2)) % 500
    history = model.fit(ids, (ids[:, 0] % 2).astype("float32"), epochs=3, verbose=0)
    assert np.all(np.isfinite(history.history["loss"]))
    distinct = sum(len(np.unique(column)) for column in ids.T)
    assert 0 < layer.size() < distinct
    assert stats_of(layer)["refused_keys"] > 0
    # What has no row reads the default row.
    unseen = layer(np.array([[10**9, 10**9]]), training=False)
    assert not np.any(unseen)


@ADMISSIONS
def test_the_config_of_a_layer_tells_its_admission(admission):
    layer = make_layer(admission)
    config = json.loads(json.dumps(layer.get_config()["tables"]))
    assert config[0]["admission"]["kind"] in ("count", "bloom", "probability")
    copy = DynamicEmbedding.from_config(layer.get_config())
    assert copy.features["item"].table.admission == admission


def test_files_from_before_there_was_admission_still_load():
    config = make_layer(None).get_config()
    for table in config["tables"]:
        assert table.pop("admission") is None
        assert table.pop("expiry") is None
    assert DynamicEmbedding.from_config(config).features["user"].table.admission is None


def test_tables_that_admit_alike_share_lookups_unless_a_filter_has_a_size():
    sgd = keras.optimizers.SGD(0.1)

    def num_tables(*admissions):
        layer = DynamicEmbedding(
            {
                str(i): FeatureConfig(TableConfig(f"t{i}", 2, sgd, admission=admission))
                for i, admission in enumerate(admissions)
            }
        )
        layer.build({str(i): (None,) for i in range(len(admissions))})
        return len(layer.tables)

    assert num_tables(COUNT, CountAdmission(4)) == 1
    assert num_tables(COUNT, CountAdmission(5)) == 2
    assert num_tables(None, COUNT) == 2
    assert num_tables(BLOOM, BLOOM) == 2


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: CountAdmission(0),
            "`min_count` must be an integer in [1, 2147483647]. Received: min_count=0.",
        ),
        (
            lambda: CountAdmission(2.5),
            "`min_count` must be an integer in [1, 2147483647]. Received: "
            "min_count=2.5.",
        ),
        (
            lambda: BloomAdmission(2**16, 10),
            "`min_count` must be an integer in [1, 65535]. Received: min_count=65536.",
        ),
        (
            lambda: BloomAdmission(2, 0),
            "`expected_keys` must be an integer in [1, 9223372036854775807]. "
            "Received: expected_keys=0.",
        ),
        (
            lambda: BloomAdmission(2, 10, 1.0),
            "`false_positive_rate` must lie in (0, 1). Received: "
            "false_positive_rate=1.0.",
        ),
        (
            lambda: ProbabilityAdmission(0.0),
            "`probability` must lie in (0, 1]. Received: probability=0.0.",
        ),
        (
            lambda: ProbabilityAdmission("0.5"),
            "`probability` must lie in (0, 1]. Received: probability='0.5'.",
        ),
        (
            lambda: BloomAdmission(2, 10, "1%"),
            "`false_positive_rate` must lie in (0, 1). Received: "
            "false_positive_rate='1%'.",
        ),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_another_type_is_refused():
    message = (
        "`admission` must be a CountAdmission, a BloomAdmission, a "
        "ProbabilityAdmission or None. Received: admission=5."
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        TableConfig("ads", 2, "sgd", admission=5)


def test_a_filter_beyond_all_memory_is_refused():
    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        make_layer(BloomAdmission(3, expected_keys=10**15))
    assert re.search(
        r"no memory for table 'ids': the filter of its admission takes \d+ bytes\. "
        r"Received: expected_keys=1000000000000000\. Lower `expected_keys`",
        str(error.value),
    )
