"""What `DynamicEmbedding` refuses, and the values its messages name."""

import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_layers
from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr_ops import SparseOptimizer

SGD = SparseOptimizer("sgd", learning_rate=0.5)


def table(name="ads", dim=2, **options):
    return TableConfig(name, dim=dim, **{"optimizer": SGD, **options})


def columns():
    return DynamicEmbedding(table(), name="embedding")


def bags():
    return DynamicEmbedding(table(), combiner="sum", name="embedding")


def named(**features):
    return DynamicEmbedding(features, name="embedding")


def refused(message, error=ValueError):
    return pytest.raises(error, match=re.escape(message))


# Construction.


@pytest.mark.parametrize(
    "features", [None, "ads", {}, [FeatureConfig(table())], {"a": table()}]
)
def test_other_features_are_refused(features):
    message = (
        "`features` must be a TableConfig, a FeatureConfig, or a dict of FeatureConfig "
        f"by input name. Received: features={features!r}."
    )
    with refused(message, TypeError):
        DynamicEmbedding(features)


@pytest.mark.parametrize("name", ["", "a/0", 3])
def test_a_feature_name_that_could_be_another_is_refused(name):
    # Column 0 of a feature 'a' is named 'a/0', and equal names are equal rows.
    message = (
        "`feature` must be a string, not empty and without '/'. Received: "
        f"feature={name!r}."
    )
    with refused(message):
        DynamicEmbedding({"a": FeatureConfig(table()), name: FeatureConfig(table())})


def test_an_unknown_combiner_is_refused():
    with refused("`combiner` must be None or one of 'sum', 'mean', 'sqrtn'. Received:"):
        DynamicEmbedding(table(), combiner="max")


@pytest.mark.parametrize(
    "features", [FeatureConfig(table()), {"a": FeatureConfig(table())}]
)
def test_a_combiner_beside_features_is_refused(features):
    message = (
        "`combiner` goes with a TableConfig. Received: combiner='sum' beside a "
        "FeatureConfig. Say FeatureConfig(table, combiner='sum')."
    )
    with refused(message):
        DynamicEmbedding(features, combiner="sum")


FLOAT16 = (
    "Layer 'embedding' cannot train in float16, whose loss scaling would scale the "
    "rows' gradients too, by a factor the table cannot see. Received: dtype policy "
    "'{}', global policy '{}'. Use 'mixed_bfloat16', which needs no loss scaling."
)


@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
def test_float16_is_refused(policy):
    with refused(FLOAT16.format(policy, "float32")):
        DynamicEmbedding(table(), name="embedding", dtype=policy)


def test_a_layer_of_its_own_policy_is_refused_where_keras_would_scale_the_loss():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with refused(FLOAT16.format("float32", "mixed_float16")):
            DynamicEmbedding(table(), name="embedding", dtype="float32")
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(
    "other", [table(dim=3), table(seed=1), table(optimizer=keras.optimizers.SGD(0.5))]
)
def test_two_different_tables_of_one_name_are_refused(other):
    layer = named(a=FeatureConfig(table()), b=FeatureConfig(other))
    message = (
        "Two different tables of one layer are named 'ads'. Received: "
        f"{table()} and {other}. Give each table a name of its own, or use one "
        "TableConfig object for both features."
    )
    with refused(message):
        layer({"a": np.array([1]), "b": np.array([1])})


def test_equal_tables_of_one_name_are_one():
    layer = named(a=FeatureConfig(table()), b=FeatureConfig(table()))
    layer({"a": np.array([1]), "b": np.array([1])})
    assert list(layer.tables) == ["ads"]


# Inputs.


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("symbolic", [False, True])
def test_float_ids_are_refused(dtype, symbolic):
    ids = keras.Input((2,), dtype=dtype) if symbolic else tf.ones((1, 2), dtype)
    with refused("Layer 'embedding' expects ids of an integer type or strings.") as at:
        DynamicEmbedding(table(), name="embedding", autocast=False)(ids)
    assert f"Received: ids of dtype {dtype}." in str(at.value)
    assert 'say keras.Input(shape, dtype="int64")' in str(at.value)


def test_the_default_of_keras_input_is_refused_when_the_model_is_made():
    inputs = {"user": keras.Input((), name="user")}
    message = (
        "Feature 'user' of layer 'embedding' expects ids of an integer type or "
        "strings. Received: ids of dtype float32. keras.Input makes float32 unless "
        "told otherwise, and so does a model without one, such as a Sequential: say "
        'keras.Input(shape, dtype="int64").'
    )
    with refused(message):
        named(user=FeatureConfig(table()))(inputs)


def test_a_sequential_model_without_an_input_is_refused():
    model = keras.Sequential([columns(), keras.layers.Flatten()])
    model.compile("sgd", "mean_squared_error")
    with refused('such as a Sequential: say keras.Input(shape, dtype="int64").'):
        model.fit(np.array([[1, 2]]), np.ones((1, 4)), verbose=0)


def test_bools_are_refused():
    with refused("Received: ids of dtype bool."):
        columns()(np.array([[True]]))


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, None), (2, 0)])
def test_columns_of_no_static_number_are_refused(shape):
    ids = keras.Input(batch_shape=shape, dtype="int64")
    with refused(f"static number of features, above 0. Received: shape {shape}."):
        columns()(ids)


def test_another_number_of_columns_is_refused():
    layer = columns()
    layer(np.array([[1, 2]]))
    message = (
        "Layer 'embedding' was built for 2 features. Received: ids of shape (1, 3)."
    )
    with refused(message):
        layer(np.array([[1, 2, 3]]))


@pytest.mark.parametrize(
    "ids, received",
    [
        (tf.ragged.constant([[1], [2, 3]]), "ragged ids of shape (batch, None)"),
        (tf.sparse.from_dense([[1, 0], [2, 3]]), "sparse ids of shape (batch, ids)"),
    ],
    ids=["ragged", "sparse"],
)
def test_bags_without_a_combiner_are_refused(ids, received):
    layer = columns()
    layer(np.array([[1, 2]]))
    with refused(f"Layer 'embedding' takes {received} together with a combiner."):
        layer(ids)


@pytest.mark.parametrize("build_first", [False, True])
@pytest.mark.parametrize("inputs", [{"a": np.array([1])}, {"b": 1, "a": 2, "c": 3}])
def test_other_inputs_than_the_features_are_refused(inputs, build_first):
    inputs = {name: np.array([1]) for name in inputs}
    layer = named(a=FeatureConfig(table()), b=FeatureConfig(table()))
    if build_first:
        layer({"a": np.array([1]), "b": np.array([1])})
    message = (
        "Layer 'embedding' expects a dict with the keys ['a', 'b'], and weights for "
        f"some of them. Received: inputs {sorted(inputs)}, weights []."
    )
    with refused(message):
        layer(inputs)
    with refused(message):
        layer({name: keras.Input((), dtype="int64") for name in inputs})


def test_weights_of_no_feature_are_refused():
    layer = named(a=FeatureConfig(table(), "sum"))
    with refused("Received: inputs ['a'], weights ['b']."):
        layer({"a": np.array([[1]])}, weights={"b": np.ones((1, 1))})


def test_weights_that_are_no_dict_are_refused():
    layer = named(a=FeatureConfig(table(), "sum"))
    message = (
        "Layer 'embedding' expects a dict of ids by feature, and a dict of weights or "
        "none. Received: inputs of type dict, weights of type EagerTensor."
    )
    with refused(message):
        layer({"a": np.array([[1]])}, weights=np.ones((1, 2)))


@pytest.mark.parametrize("make", [columns, bags])
def test_one_feature_given_a_dict_is_refused(make):
    with refused("Layer 'embedding' expects one tensor of ids. Received: inputs of sh"):
        make()({"a": np.array([[1]])})
    with refused("Layer 'embedding' expects one tensor of ids. Received: inputs of sh"):
        make()([keras.Input((2,), dtype="int64"), keras.Input((2,), dtype="int64")])


def test_several_features_given_a_tensor_are_refused():
    message = (
        "Layer 'embedding' expects a dict of ids by feature. Received: inputs of shape "
        "(1, 2)."
    )
    with refused(message):
        named(a=FeatureConfig(table()))(np.array([[1, 2]]))


def test_weights_without_a_combiner_are_refused():
    with refused("Received: weights of shape (1, 1), combiner=None."):
        columns()(np.array([[1]]), weights=np.ones((1, 1)))


def test_weights_of_another_shape_are_refused():
    message = "shape (1, 2), weights of type EagerTensor and shape (1, 3)."
    with refused(message):
        bags()(np.array([[1, 2]]), weights=np.ones((1, 3)))


# Rows.


@pytest.mark.parametrize(
    "use",
    [
        lambda layer: layer.read_rows([1], 0),
        lambda layer: layer.write_rows([1], [[1, 2]], 0),
    ],
)
def test_rows_of_a_layer_without_a_table_are_refused(use):
    message = (
        "Layer 'embedding' expects to be built before its rows are read or written. "
        "Received: a layer without a table yet. Call it once, or build the model."
    )
    with refused(message):
        use(columns())


@pytest.mark.parametrize("feature", [None, 2, "x"])
def test_rows_of_no_feature_are_refused(feature):
    layer = columns()
    layer(np.array([[1, 2]]))
    message = (
        "`feature` must name one of the features ['0', '1']. Received: "
        f"feature={feature!r}."
    )
    with refused(message):
        layer.read_rows([1], feature)


def test_the_features_of_a_dict_are_named_in_full():
    layer = named(a=FeatureConfig(table(), per_column=True), b=FeatureConfig(table()))
    layer({"a": np.array([[1, 2]]), "b": np.array([1])})
    with refused("one of the features ['a/0', 'a/1', 'b']. Received: feature='a'."):
        layer.read_rows([1], "a")


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 3)])
def test_vectors_of_another_shape_are_refused(shape):
    layer = bags()
    layer(np.array([[1, 2]]))
    message = (
        "`vectors` must have one row of dim=2 per id: shape (2, 2). Received: "
        f"vectors.shape={shape}."
    )
    with refused(message):
        layer.write_rows([1, 2], np.zeros(shape))


def test_rows_of_float_ids_are_refused():
    layer = bags()
    layer(np.array([[1, 2]]))
    with refused("Layer 'embedding' expects ids of an integer type or strings."):
        layer.read_rows([1.0])


# Building.


def test_a_second_build_is_refused_and_changes_nothing():
    layer = columns()
    layer(np.array([[1, 2]]))
    layer.write_rows([1], [[5, 6]], 0)
    with pytest.raises(ValueError, match="to a layer that is already built"):
        layer.build((None, 3))
    np.testing.assert_array_equal(layer(np.array([[1, 2]])), [[[5, 6], [0, 0]]])


# Surroundings.


@pytest.mark.parametrize(
    "strategy",
    [
        lambda: tf.distribute.MirroredStrategy(["cpu:0"]),
        lambda: tf.distribute.OneDeviceStrategy("cpu:0"),
    ],
)
def test_strategies_are_refused(strategy):
    strategy = strategy()
    message = (
        "Layer 'embedding' does not run under a tf.distribute strategy: each replica "
        f"would move the rows by itself. Received: a scope of {type(strategy).__name__}"
        ". Leave the scope; one process uses all its cores."
    )
    built = columns()
    built(np.array([[1, 2]]))
    with strategy.scope():
        with refused(message):
            columns()(keras.Input((2,), dtype="int64"))
        with refused(message):
            columns()(np.array([[1, 2]]))
        with refused(message):
            built(np.array([[1, 2]]))
    with refused(message):
        strategy.run(lambda: built(np.array([[1, 2]]), training=True))


def test_another_backend_is_refused():
    # Whatever Keras finds installed, it may not come up with another backend than
    # TensorFlow here: so it says that it has.
    code = "import keras; keras.backend.backend = lambda: 'jax'; import keras_layers"
    root = pathlib.Path(keras_layers.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        "ImportError: tfctr runs on the TensorFlow backend of Keras: its tables are "
        "TensorFlow resources. Received: KERAS_BACKEND='jax'. Set the environment "
        "variable KERAS_BACKEND=tensorflow before Keras is imported."
    )
