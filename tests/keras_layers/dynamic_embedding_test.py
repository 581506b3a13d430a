"""What `DynamicEmbedding` looks up: keys, bags, masks, rows; nothing is trained here.

The oracle is a dict from (table, feature, id) to a vector, filled by `write_rows`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr_ops import SparseOptimizer

DIM = 3
ADAGRAD = SparseOptimizer("adagrad", learning_rate=0.5)
COMBINERS = ("sum", "mean", "sqrtn")


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(7)


def table(name="ads", dim=DIM, **options):
    return TableConfig(name, dim=dim, **{"optimizer": ADAGRAD, **options})


def first_rows(layer, inputs):
    """What training would start from."""
    return layer(inputs, training=True)


def write(layer, feature, vectors_by_id):
    """Gives a built layer known vectors."""
    ids, vectors = list(vectors_by_id), list(vectors_by_id.values())
    layer.write_rows(np.array(ids), np.array(vectors, np.float32), feature)


def random_vectors(ids, dim=DIM, seed=0):
    rng = np.random.default_rng(seed)
    return {int(i): rng.normal(size=dim).astype("float32") for i in ids}


# Keys.


@pytest.mark.parametrize(
    "dtype",
    ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
)
def test_an_id_is_its_value_whatever_its_type(dtype):
    layer = DynamicEmbedding(table())
    layer(np.zeros((1, 2), "int64"))
    known = random_vectors([0, 1, 127])
    write(layer, 0, known)
    write(layer, 1, {i: -v for i, v in known.items()})
    output = layer(np.array([[0, 127], [1, 1]]).astype(dtype))
    expected = [[known[0], -known[127]], [known[1], -known[1]]]
    np.testing.assert_array_equal(output, expected)


def test_strings_are_ids():
    layer = DynamicEmbedding(FeatureConfig(table()))
    words = tf.constant([["a", "b"], ["b", ""]])
    layer(words)
    vectors = np.arange(9.0).reshape(3, DIM).astype("float32")
    layer.write_rows(tf.constant(["a", "b", ""]), vectors)
    np.testing.assert_array_equal(layer(words), vectors[[[0, 1], [1, 2]]])
    np.testing.assert_array_equal(
        layer.read_rows(tf.constant(["", "a", "unknown"])),
        [vectors[2], vectors[0], np.zeros(DIM)],
    )


def test_every_int64_is_an_id():
    ids = np.array([-(2**63), -(2**62), -1, 0, 1, 2**62, 2**63 - 1])
    layer = DynamicEmbedding(FeatureConfig(table()))
    layer(ids)
    known = random_vectors(ids)
    write(layer, None, known)
    np.testing.assert_array_equal(layer(ids), [known[int(i)] for i in ids])
    assert layer.size() == len(ids)


def test_equal_ids_of_different_columns_never_meet():
    layer = DynamicEmbedding(table())
    ids = np.array([[5, 5, 5]])
    rows = first_rows(layer, ids).numpy()[0]
    assert len(np.unique(rows, axis=0)) == 3
    write(layer, 1, {5: [1, 2, 3]})
    np.testing.assert_array_equal(layer(ids), [[[0] * 3, [1, 2, 3], [0] * 3]])
    assert layer.size() == 1


def test_features_of_one_table_are_kept_apart():
    ads = table()
    layer = DynamicEmbedding({"a": FeatureConfig(ads), "b": FeatureConfig(ads)})
    ids = {"a": np.array([5]), "b": np.array([5])}
    first = first_rows(layer, ids)
    assert not np.array_equal(first["a"], first["b"])
    write(layer, "a", {5: [1, 2, 3]})
    output = layer(ids)
    np.testing.assert_array_equal(output["a"], [[1, 2, 3]])
    np.testing.assert_array_equal(output["b"], [[0, 0, 0]])


def test_features_of_one_namespace_share_rows():
    items = table("items")
    layer = DynamicEmbedding(
        {
            "item": FeatureConfig(items, namespace="item"),
            "history": FeatureConfig(items, combiner="sum", namespace="item"),
        }
    )
    ids = {"item": np.array([5]), "history": np.array([[5, 5]])}
    first = first_rows(layer, ids)
    np.testing.assert_array_equal(first["history"], 2 * first["item"])
    write(layer, "history", {5: [1, 2, 3]})
    np.testing.assert_array_equal(layer(ids)["item"], [[1, 2, 3]])
    assert layer.size() == 1


def test_a_namespace_of_another_table_is_another():
    layer = DynamicEmbedding(
        {
            "a": FeatureConfig(table("a"), namespace="id"),
            "b": FeatureConfig(table("b"), namespace="id"),
        }
    )
    ids = {"a": np.array([5]), "b": np.array([5])}
    first = first_rows(layer, ids)
    assert not np.array_equal(first["a"], first["b"])
    write(layer, "a", {5: [1, 2, 3]})
    np.testing.assert_array_equal(layer(ids)["b"], [[0, 0, 0]])


def test_columns_of_one_namespace_share_rows_column_by_column():
    ads = table()
    layer = DynamicEmbedding(
        {
            "a": FeatureConfig(ads, per_column=True, namespace="n"),
            "between": FeatureConfig(ads),
            "b": FeatureConfig(ads, per_column=True, namespace="n"),
        }
    )
    rows = first_rows(
        layer,
        {
            "a": np.array([[5, 6]]),
            "between": np.array([5]),
            "b": np.array([[5, 6, 7]]),
        },
    )
    np.testing.assert_array_equal(rows["a"], rows["b"][:, :2])
    assert len(np.unique(np.concatenate([rows["b"][0], rows["between"]]), axis=0)) == 4


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a")])
def test_features_of_every_form_share_one_lookup(order):
    ads = table()
    features = {
        "a": FeatureConfig(ads, per_column=True),
        "b": FeatureConfig(ads, combiner="sum"),
        "c": FeatureConfig(ads, padding_id=0),
    }
    layer = DynamicEmbedding({name: features[name] for name in order})
    ids = {
        "a": np.array([[1, 2, 3], [3, 2, 1]]),
        "b": tf.ragged.constant([[1, 1], []], dtype=tf.int64),
        "c": np.array([[1, 0], [0, 2]]),
    }
    layer(ids)
    known = {
        name: random_vectors([1, 2, 3], seed=i)
        for i, name in enumerate(["a/0", "a/1", "a/2", "b", "c"])
    }
    for name, vectors in known.items():
        write(layer, name, vectors)
    output = layer(ids)
    columns = [known["a/0"], known["a/1"], known["a/2"]]
    np.testing.assert_array_equal(
        output["a"],
        [[c[i] for c, i in zip(columns, row, strict=True)] for row in ids["a"]],
    )
    np.testing.assert_array_equal(output["b"], [2 * known["b"][1], np.zeros(DIM)])
    c = known["c"]
    expected = [[c[1], np.zeros(DIM)], [np.zeros(DIM), c[2]]]
    np.testing.assert_array_equal(output["c"], expected)


# Shapes.


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 5), (0, 5)])
def test_columns_give_a_vector_per_id(shape):
    layer = DynamicEmbedding(table())
    ids = np.arange(np.prod(shape)).reshape(shape)
    assert layer(ids).shape == (*shape, DIM)
    assert layer.compute_output_shape(shape) == (*shape, DIM)


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 5, 6)])
def test_a_feature_may_have_any_shape(shape):
    layer = DynamicEmbedding(FeatureConfig(table()))
    ids = np.arange(np.prod(shape)).reshape(shape)
    layer(ids)
    known = random_vectors(ids.flatten())
    write(layer, None, known)
    expected = np.vectorize(known.get, signature="()->(d)")(ids)
    np.testing.assert_array_equal(layer(ids), expected)


def test_sizes_may_be_unknown():
    layer = DynamicEmbedding(FeatureConfig(table()))
    run = tf.function(layer, input_signature=[tf.TensorSpec((None, None), tf.int64)])
    assert run.get_concrete_function().output_shapes.as_list() == [None, None, DIM]
    assert run(np.zeros((2, 5), "int64")).shape == (2, 5, DIM)
    assert run(np.zeros((0, 0), "int64")).shape == (0, 0, DIM)


def test_a_dict_gives_a_dict_in_the_order_of_the_features():
    layer = DynamicEmbedding(
        {
            "z": FeatureConfig(table("wide", 4)),
            "a": FeatureConfig(table("slim", 1), combiner="mean"),
        }
    )
    inputs = {"a": np.array([[1, 2]]), "z": np.array([[1, 2]])}
    output = layer(inputs)
    assert list(output) == ["z", "a"]
    assert (output["z"].shape, output["a"].shape) == ((1, 2, 4), (1, 1))
    declared = layer(
        {
            "a": keras.Input((2,), dtype="int64"),
            "z": keras.Input((2,), dtype="int64"),
        }
    )
    assert (declared["z"].shape, declared["a"].shape) == ((None, 2, 4), (None, 1))


# Rows.


def test_unknown_ids_read_the_default_row_outside_training():
    layer = DynamicEmbedding(table(default_row=(1.0, 2.0, 3.0)))
    np.testing.assert_array_equal(layer(np.array([[4]])), [[[1, 2, 3]]])
    np.testing.assert_array_equal(layer.read_rows([4], 0), [[1, 2, 3]])


def test_an_id_seen_but_not_trained_stays_unknown():
    layer = DynamicEmbedding(table())
    assert np.any(first_rows(layer, np.array([[4]])))
    np.testing.assert_array_equal(layer(np.array([[4]])), np.zeros((1, 1, DIM)))
    assert layer.size() == 0


def test_first_rows_follow_from_seed_and_id_alone():
    ids = np.array([3, 1, 2])
    rows = first_rows(DynamicEmbedding(FeatureConfig(table(seed=5))), ids).numpy()
    again = DynamicEmbedding(FeatureConfig(table(seed=5)), TieredStorage("1MB"))
    first_rows(again, np.arange(1000))
    np.testing.assert_array_equal(first_rows(again, ids), rows)
    other = DynamicEmbedding(FeatureConfig(table(seed=6)))
    assert not np.isin(first_rows(other, ids), rows).any()


def test_without_a_seed_that_of_keras_counts():
    def rows():
        return first_rows(DynamicEmbedding(table()), np.array([[3, 4]])).numpy()

    keras.utils.set_random_seed(1)
    first, second = rows(), rows()
    keras.utils.set_random_seed(1)
    np.testing.assert_array_equal(rows(), first)
    assert not np.isin(first, second).any()


@pytest.mark.parametrize(
    "initializer, low, high, mean, deviation",
    [
        ("uniform", -0.05, 0.05, 0.0, 0.1 / np.sqrt(12)),
        (keras.initializers.RandomUniform(1.0, 3.0), 1.0, 3.0, 2.0, 2 / np.sqrt(12)),
        (keras.initializers.RandomNormal(1.0, 2.0), -np.inf, np.inf, 1.0, 2.0),
        (keras.initializers.TruncatedNormal(0.0, 1.0), -2.0, 2.0, 0.0, 0.8796),
        (keras.initializers.Constant(0.5), 0.5, 0.5, 0.5, 0.0),
    ],
)
def test_first_rows_follow_the_initializer(initializer, low, high, mean, deviation):
    layer = DynamicEmbedding(FeatureConfig(table(initializer=initializer, seed=0)))
    rows = first_rows(layer, np.arange(20_000)).numpy().astype("float64")
    assert low <= rows.min() <= rows.max() <= high
    # Five standard errors of the mean of 60,000 numbers, and the same for the spread.
    error = 5 * deviation / np.sqrt(rows.size)
    assert abs(rows.mean() - mean) <= error
    assert abs(rows.std() - deviation) <= error + 1e-12


def test_rows_are_written_and_read_by_feature():
    layer = DynamicEmbedding(
        {
            "cats": FeatureConfig(table(), per_column=True),
            "item": FeatureConfig(table("items", 2)),
        }
    )
    layer({"cats": np.array([[1, 2]]), "item": np.array([1])})
    layer.write_rows([8, 9, 8], [[1] * 3, [2] * 3, [3] * 3], "cats/1")
    layer.write_rows(np.array([8]), np.array([[4.0, 5.0]]), "item")
    np.testing.assert_array_equal(
        layer.read_rows([9, 8, 7], "cats/1"), [[2] * 3, [3] * 3, [0] * 3]
    )
    np.testing.assert_array_equal(layer.read_rows([8], "cats/0"), [[0] * 3])
    np.testing.assert_array_equal(layer.read_rows([8], "item"), [[4, 5]])
    assert layer.size() == 3
    assert {name: s["known_rows"] for name, s in layer.stats().items()} == {
        "ads": 2,
        "items": 1,
    }


def test_no_rows_may_be_read_and_written():
    layer = DynamicEmbedding(FeatureConfig(table()))
    layer(np.array([1]))
    layer.write_rows([], np.zeros((0, DIM)))
    assert layer.read_rows([]).shape == (0, DIM)
    assert layer.size() == 0


def test_export_yields_every_known_row_once():
    layer = DynamicEmbedding(
        {"a": FeatureConfig(table(), per_column=True), "b": FeatureConfig(table("b"))}
    )
    first_rows(layer, {"a": np.array([[1, 2]]), "b": np.array([3])})
    known = {
        ("ads/a/0", "a/0"): random_vectors(range(40), seed=1),
        ("ads/a/1", "a/1"): random_vectors(range(30, 50), seed=2),
        ("b/b", "b"): random_vectors([-1, 2**62], seed=3),
    }
    for (_, feature), vectors in known.items():
        write(layer, feature, vectors)
    found = {name: {} for name, _ in known}
    for name, ids, vectors in layer.export(batch_size=16):
        assert len(ids) == len(vectors) <= 16
        assert not set(ids.tolist()) & set(found[name])
        found[name].update(zip(ids.tolist(), vectors, strict=True))
    for (name, _), vectors in known.items():
        assert set(found[name]) == set(vectors)
        for i, vector in vectors.items():
            np.testing.assert_array_equal(found[name][i], vector)


# Names, sizes, dtypes.


def test_the_name_says_what_the_table_is():
    ads = table("clicked ads", 16)
    storage = TieredStorage()
    names = [DynamicEmbedding(ads).name, DynamicEmbedding(ads, storage).name]
    assert names == ["clicked_ads_dim16_adagrad_ram", "clicked_ads_dim16_adagrad_ram_1"]
    both = {"a": FeatureConfig(ads), "b": FeatureConfig(table("b"))}
    assert DynamicEmbedding(both).name.startswith("embedding_2_tables_ram")
    assert DynamicEmbedding(ads, name="mine").name == "mine"


def test_the_summary_tells_what_the_table_is():
    inputs = keras.Input((2,), dtype="int64")
    layer = DynamicEmbedding(table("summarised"))
    model = keras.Model(inputs, layer(inputs))
    write(layer, 1, random_vectors(range(1000)))
    lines = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    text = "\n".join(lines)
    assert "summarised_dim3_adagrad_ram" in text
    assert "3,000" in text


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "float64"])
@pytest.mark.parametrize("combiner", [None, *COMBINERS])
def test_rows_stay_float32_and_come_out_as_the_policy_says(dtype, combiner):
    ids, weights = np.array([[1, 2], [2, 2]]), None
    if combiner:
        weights = np.array([[0.5, 2.0], [0.25, 4.0]], np.float32)
    known = random_vectors([1, 2])
    outputs = {}
    for policy in (dtype, "float32"):
        layer = DynamicEmbedding(FeatureConfig(table(), combiner), dtype=policy)
        layer(ids)
        write(layer, None, known)
        outputs[policy] = layer(ids, weights=weights)
    assert outputs[dtype].dtype == dtype.removeprefix("mixed_")
    expected = tf.cast(outputs["float32"], outputs[dtype].dtype)
    np.testing.assert_array_equal(outputs[dtype], expected)
    np.testing.assert_array_equal(layer.read_rows([1]), [known[1]])


@pytest.mark.parametrize("num_keys, dim", [(100_000, 16), (1_000_000, 4)])
def test_forecast_is_within_a_tenth_of_the_memory_in_use(num_keys, dim):
    layer = DynamicEmbedding(FeatureConfig(table(dim=dim)))
    layer(np.array([1]))
    rng = np.random.default_rng(0)
    ids = rng.integers(-(2**63), 2**63 - 1, size=num_keys)
    layer.write_rows(ids, np.zeros((num_keys, dim), np.float32))
    stats = layer.stats()["ads"]
    forecast = layer.forecast(num_keys)["ads"]
    assert stats["known_rows"] == num_keys
    assert forecast.row_bytes == stats["row_bytes"]
    assert forecast.num_keys == num_keys
    assert abs(forecast.ram_bytes / stats["memory_bytes"] - 1) < 0.1
    assert forecast.ssd_bytes == 0


def test_forecast_speaks_of_every_table():
    layer = DynamicEmbedding(
        {"a": FeatureConfig(table("a", 4)), "b": FeatureConfig(table("b", 8))}
    )
    forecast = layer.forecast(1000)
    assert {name: f.row_bytes for name, f in forecast.items()} == {"a": 56, "b": 88}
