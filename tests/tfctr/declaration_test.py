"""`FeatureDeclaration`, and the configuration and models that are told of it."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr.builders import open_log
from tfctr.config import TrainConfig
from tfctr.declaration import FeatureDeclaration
from tfctr.feature import Feature
from tfctr.models import DynamicTables, StaticTables

SECTIONS = {
    "features": [
        {"name": "price", "kind": "dense", "transform": "log", "missing": 1},
        {"name": "age", "transform": "bucketize", "boundaries": [1, 2.5]},
        {"name": "pair", "columns": ["a", "b"]},
        {"name": "seen", "kind": "ids", "combiner": "sum", "table": "item"},
    ]
}


def test_entries_become_features():
    config = TrainConfig.from_dict(SECTIONS)
    assert config.features[1].boundaries == (1.0, 2.5)
    assert [declared.feature for declared in config.features] == [
        Feature("price", "float32"),
        Feature("age", "int64"),
        Feature("pair", "int64", width=2),
        Feature("seen", "int64", is_bag=True, combiner="sum", table="item"),
    ]
    assert [declared.sources for declared in config.features] == [
        ("price",),
        ("age",),
        ("a", "b"),
        ("seen",),
    ]


def test_dicts_and_json_come_back():
    config = TrainConfig.from_dict(SECTIONS)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"kind": "text"}, "`kind` of feature 'f' must be one of 'id', 'ids', "),
        ({"column": "a", "columns": ["b"]}, "must be empty where `columns` are named"),
        ({"kind": "ids", "columns": ["b"]}, "must be empty for kind 'ids': each list"),
        ({"transform": "square"}, "must be one of 'log', 'bucketize' or empty."),
        ({"transform": "log"}, "of a feature of kind 'dense', and this is of 'id'"),
        ({"transform": "bucketize"}, "numbers with transform 'bucketize', and left"),
        ({"boundaries": [1]}, "and left out without it. Received: boundaries=(1.0,)."),
        (
            {"transform": "bucketize", "boundaries": [2, 1]},
            "must be in rising order. Received: boundaries=(2.0, 1.0).",
        ),
        ({"combiner": "max"}, "'mean', 'sum', 'sqrtn'. Received: combiner='max'."),
        ({"table": "t", "kind": "dense"}, "`table` is for ids of one column, and"),
        ({"colum": "a"}, "Did you mean 'features[0].column'?"),
        ({"columns": ["a", 1]}, "'features[0].columns[1]' must be a string"),
        ({"boundaries": 5}, "'features[0].boundaries' must be a list. Received"),
    ],
)
def test_wrong_entries_are_refused(entry, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainConfig.from_dict({"features": [{"name": "f", **entry}]})


def test_a_feature_needs_a_name():
    with pytest.raises(ValueError, match="Received: name=''"):
        FeatureDeclaration()


def test_logs_that_need_features_say_so():
    config = TrainConfig.from_dict({"data": {"kind": "parquet", "path": "x"}})
    with pytest.raises(ValueError, match="must be told its features. Received: none."):
        open_log(config)


def test_logs_with_features_of_their_own_take_no_others():
    with pytest.raises(ValueError, match="data.kind='synthetic', which has features"):
        open_log(TrainConfig.from_dict(SECTIONS))


def test_features_of_one_table_share_vectors():
    features = [
        Feature("item", "int64"),
        Feature("seen", "int64", is_bag=True, combiner="sum", table="item"),
        Feature("other", "int64"),
    ]
    tables = DynamicTables(keras.optimizers.SGD(0.1), seed=3)
    layer = tables.layer("vectors", features, dim=2)
    vectors = layer(
        {
            "item": tf.constant([7], tf.int64),
            "seen": tf.ragged.constant([[7, 7]], dtype=tf.int64),
            "other": tf.constant([7], tf.int64),
        },
        training=True,
    )
    np.testing.assert_allclose(vectors["seen"], 2 * vectors["item"], rtol=1e-6)
    assert not np.allclose(vectors["other"], vectors["item"])


def test_static_tables_refuse_what_they_cannot_do():
    feature = Feature("seen", "int64", is_bag=True, combiner="sum")
    with pytest.raises(ValueError, match="'seen' with table=None and combiner='sum'"):
        StaticTables({"seen": [1]}).layer("vectors", [feature], dim=2)
