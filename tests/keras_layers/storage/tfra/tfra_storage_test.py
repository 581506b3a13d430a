"""`TfraStorage`: the recipe."""

import re
import socket

import keras
import pytest
import tensorflow as tf

from keras_layers import TableConfig, TfraStorage
from tfctr_ops import SparseOptimizer

RECIPES = {
    "cuckoo": TfraStorage(init_size=1000, devices=["/CPU:0", "/CPU:0"]),
    "hkv": TfraStorage("hkv", capacity=1000, hbm="1MB"),
    "redis": TfraStorage("redis", redis={"redis_host_port": [1234]}),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_serialisation(name):
    # Without TFRA, too.
    recipe = RECIPES[name]
    config = keras.saving.serialize_keras_object(recipe)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == recipe.get_config()
    assert again.describe() == f"tfra_{name}"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"creator": "rocksdb"}, "one of 'cuckoo', 'hkv', 'redis'. Received: creator="),
        ({"devices": "/CPU:0"}, "a list of device names, such as ['/CPU:0'], or None."),
        ({"devices": []}, "a list of device names, such as ['/CPU:0'], or None. Rec"),
        (
            {"init_size": -1},
            "`init_size` must be an integer of 0 or more, and goes with",
        ),
        (
            {"creator": "redis", "init_size": 1},
            "goes with creator='cuckoo'. Received: init_size=1, creator='redis'.",
        ),
        ({"creator": "hkv"}, "which needs both: rows beyond leave. Received: creator="),
        ({"creator": "hkv", "capacity": 0, "hbm": 1}, "`capacity`, a positive number"),
        ({"capacity": 5}, "go with creator='hkv'"),
        ({"hbm": "1GB"}, "go with creator='hkv'"),
        ({"redis": {}}, "`redis` goes with creator='redis'. Received: redis={}, cr"),
        (
            {"creator": "redis", "devices": ["/CPU:0"] * 2},
            "creator='redis' has one table, on the server, and so takes one device",
        ),
        (
            {"devices": ["/GPU:0"]},
            "creator='cuckoo' keeps no rows on a GPU: creator='hkv' does.",
        ),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TfraStorage(**arguments)


def test_a_device_must_be_there(tfra_storage):
    config = TableConfig("ads", dim=2, optimizer=SparseOptimizer("sgd"))
    storage = tfra_storage("hkv", ["/GPU:9"], capacity=1000, hbm="1MB")
    with pytest.raises(ValueError, match="no device '/GPU:9' for creator='hkv'"):
        storage.open(config, (0,))


def test_a_server_must_be_there(tfra_storage):
    config = TableConfig("ads", dim=2, optimizer=SparseOptimizer("sgd"))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # Nobody else listens there now.
        port = held.getsockname()[1]
        storage = tfra_storage("redis", redis={"redis_host_port": [port]})
        with pytest.raises(
            tf.errors.UnavailableError, match=f"Table 'ads' found no Redis.*{port}"
        ):
            storage.open(config, (0,))


def test_a_table_may_have_any_name(tfra_storage):
    config = TableConfig("_ä 1", dim=2, optimizer=SparseOptimizer("sgd"))
    table = tfra_storage().open(config, (0,))
    found = tf.function(
        lambda: table.read(tf.constant([1], tf.int64), tf.constant([0]))
    )()
    assert found.shape == (1, 2)


def test_forecasts_follow_the_tables():
    adam = TableConfig("ads", dim=16, optimizer=SparseOptimizer("adam"))
    # Key, marks, weights, two slots and three counters.
    row_bytes = 8 + 2 + 4 * (3 * 16 + 3)
    assert TfraStorage().forecast(adam, 100).ram_bytes == 8192 * row_bytes
    # A table doubles.
    assert TfraStorage().forecast(adam, 10_000).ram_bytes == 2**14 * row_bytes
    roomy = TfraStorage(init_size=100_000).forecast(adam, 10_000)
    assert roomy.ram_bytes == 2**17 * row_bytes
    capped = RECIPES["hkv"].forecast(adam, 10_000)
    assert capped.ram_bytes == 1000 * row_bytes
    wide = TableConfig("ads", dim=64, optimizer=SparseOptimizer("adam"))
    assert TfraStorage().forecast(wide, 1).row_bytes == 8 + 2 + 4 * 195 + 24
