"""What a table and a feature may be, each refusal with what it received."""

import json
import re

import keras
import numpy as np
import pytest

from keras_layers.table_config import (
    FeatureConfig,
    TableConfig,
    deserialize_optimizer,
    serialize_optimizer,
)
from tfctr_ops import RowInitializer, SparseOptimizer

SGD = SparseOptimizer("sgd", learning_rate=0.5)


def table(**options):
    return TableConfig(**{"name": "ads", "dim": 2, "optimizer": SGD, **options})


def test_an_optimizer_must_be_given():
    with pytest.raises(TypeError, match="optimizer"):
        TableConfig("ads", dim=2)


def test_optimizer_and_initializer_are_converted():
    config = table(optimizer=keras.optimizers.Adagrad(0.5), initializer="ones")
    assert config.sparse_optimizer() == SparseOptimizer("adagrad", learning_rate=0.5)
    assert config.row_initializer() == RowInitializer("constant", 1.0)


@pytest.mark.parametrize("row", [[1, 2], (1.0, 2.0), np.array([1.0, 2.0])])
def test_default_row_becomes_a_tuple_of_floats(row):
    config = table(default_row=row)
    assert config.default_row == (1.0, 2.0)
    assert all(type(value) is float for value in config.default_row)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"name": ""},
            "`name` must be a string, not empty and without '/'. Received: name=''.",
        ),
        ({"name": 3}, "`name` must be a string"),
        ({"name": "a/b"}, "Received: name='a/b'."),
        ({"dim": 0}, "`dim` must be a positive integer. Received: dim=0."),
        ({"dim": 2.0}, "Received: dim=2.0."),
        ({"dim": True}, "Received: dim=True."),
        ({"dim": "2"}, "Received: dim='2'."),
        ({"seed": True}, "`seed` must be an integer, or None. Received: seed=True."),
        ({"seed": 0.5}, "Received: seed=0.5."),
        (
            {"bad_gradients": "ignore"},
            "`bad_gradients` must be one of 'raise', 'skip'. Received: "
            "bad_gradients='ignore'.",
        ),
        (
            {"default_row": (1.0,)},
            "`default_row` must hold dim=2 finite numbers. Received: "
            "default_row=(1.0,).",
        ),
        ({"default_row": (1.0, np.nan)}, "Received: default_row=(1.0, nan)."),
        ({"default_row": (1.0, np.inf)}, "Received: default_row=(1.0, inf)."),
        (
            {"optimizer": keras.optimizers.SGD(momentum=0.5)},
            "Received: SGD(momentum=0.5).",
        ),
        ({"initializer": "he_normal"}, "Received: initializer='he_normal'."),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        table(**options)


def test_other_optimizers_are_refused():
    with pytest.raises(TypeError, match="Received: optimizer=<.*RMSprop object"):
        table(optimizer="rmsprop")


def test_an_optimizer_may_be_named():
    config = table(optimizer="adam")
    assert type(config.optimizer) is keras.optimizers.Adam
    assert config.sparse_optimizer().kind == "adam"


def test_a_feature_needs_a_table():
    with pytest.raises(
        TypeError,
        match=re.escape("`table` must be a TableConfig. Received: table='ads'."),
    ):
        FeatureConfig("ads")


def test_an_unknown_combiner_is_refused():
    with pytest.raises(
        ValueError,
        match=re.escape(
            "`combiner` must be None or one of 'sum', 'mean', 'sqrtn'. Received: "
            "combiner='max'."
        ),
    ):
        FeatureConfig(table(), combiner="max")


@pytest.mark.parametrize("namespace", ["", "a/0", 3])
def test_a_namespace_that_could_be_another_name_is_refused(namespace):
    message = (
        "`namespace` must be a string, not empty and without '/'. Received: "
        f"namespace={namespace!r}."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        FeatureConfig(table(), namespace=namespace)


@pytest.mark.parametrize("padding_id", [0.5, True, b"x", [0]])
def test_padding_of_another_type_is_refused(padding_id):
    message = (
        "`padding_id` must be an integer, a string, or None if every id counts. "
        f"Received: padding_id={padding_id!r}."
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        FeatureConfig(table(), padding_id=padding_id)


@pytest.mark.parametrize("padding_id", [2**63, -(2**63) - 1, np.uint64(2**64 - 1)])
def test_padding_beyond_64_bits_is_refused(padding_id):
    message = (
        "`padding_id` must lie in [-2**63, 2**63), as ids do: a uint64 beyond is taken "
        f"for the int64 of the same bits. Received: padding_id={padding_id}."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        FeatureConfig(table(), padding_id=padding_id)


@pytest.mark.parametrize("padding_id", [-(2**63), np.int32(7), "", None])
def test_padding_may_be_any_id(padding_id):
    found = FeatureConfig(table(), padding_id=padding_id).padding_id
    assert found == padding_id
    assert not isinstance(found, np.generic)  # Which JSON would not take.


@pytest.mark.parametrize(
    "options, received",
    [
        ({"combiner": "sum"}, "per_column=True, combiner='sum', padding_id=None"),
        ({"padding_id": 0}, "per_column=True, combiner=None, padding_id=0"),
    ],
)
def test_columns_have_neither_bags_nor_padding(options, received):
    with pytest.raises(ValueError, match=re.escape(f"Received: {received}.")):
        FeatureConfig(table(), per_column=True, **options)


@pytest.mark.parametrize(
    "optimizer",
    [
        SparseOptimizer("ftrl", learning_rate=0.5, l1=0.25),
        keras.optimizers.Adam(0.5, beta_1=0.8),
        keras.optimizers.SGD(keras.optimizers.schedules.InverseTimeDecay(0.5, 1, 0.5)),
    ],
)
def test_optimizers_survive_json(optimizer):
    text = json.dumps(serialize_optimizer(optimizer))
    again = deserialize_optimizer(json.loads(text))
    assert type(again) is type(optimizer)
    assert serialize_optimizer(again) == serialize_optimizer(optimizer)
