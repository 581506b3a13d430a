"""`TieredStorage(numa_node=...)`: where the memory of tables comes from."""

import dataclasses
import pathlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig, TieredStorage
from tfctr.topology import memory_policy
from tfctr_ops import RowInitializer, SparseOptimizer, StoreConfig

CONFIG = TableConfig("ads", dim=4, optimizer=SparseOptimizer("sgd", learning_rate=0.5))


def may_choose():
    """Whether this system lets a thread choose the node of its memory."""
    found = []

    def choose():
        try:
            # Holds for this thread alone.
            memory_policy.set_policy("prefer", [0])
            found.append(True)
        except OSError:
            found.append(False)

    thread = threading.Thread(target=choose)
    thread.start()
    thread.join()
    return found[0]


def preferred_bytes():
    """Bytes in mappings that prefer node 0, by the kernel."""
    total = 0
    for line in pathlib.Path("/proc/self/numa_maps").read_text().splitlines():
        _, policy, *facts = line.split()
        if policy == "prefer:0":
            of = dict(fact.split("=") for fact in facts if "=" in fact)
            total += int(of.get("N0", 0)) * int(of["kernelpagesize_kB"]) * 1024
    return total


def train(storage):
    config = dataclasses.replace(CONFIG, dim=64)
    table = storage.open(config, [1])
    ids = tf.range(20000, dtype=tf.int64)
    rows, ticket = table.lookup(ids, tf.constant([0]), tf.constant(-1, tf.int64))
    table.update(ticket, tf.ones_like(rows), 0.5)
    return table


def test_rows_and_index_lie_in_the_node():
    if not pathlib.Path("/proc/self/numa_maps").exists():
        pytest.skip("this kernel does not show the policies of memory")
    if not may_choose():
        pytest.skip("this system lets nobody choose the node of memory")
    before = preferred_bytes()
    tables = [train(TieredStorage())]
    assert preferred_bytes() <= before
    tables.append(train(TieredStorage(numa_node=0)))
    # At least the rows.
    assert preferred_bytes() >= before + 20000 * (24 + 64 * 4)
    del tables


def test_a_node_that_is_not_there_is_told():
    message = "`numa_node` must be a NUMA node of this machine .*Received: numa_node=99"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        TieredStorage(numa_node=99).open(CONFIG, [1])


def test_a_negative_node_is_refused_below_the_storage():
    with pytest.raises(ValueError, match="`numa_node` must not be neg.*numa_node=-2"):
        StoreConfig(
            *("ads", 1, SparseOptimizer("sgd"), RowInitializer("constant")),
            feature_seeds=(1,),
            default_row=(0.0,),
            numa_node=-2,
        )


def test_a_saved_model_keeps_its_node(tmp_path):
    storage = TieredStorage(numa_node=0)
    inputs = keras.Input((2,), dtype="int64")
    model = keras.Model(inputs, DynamicEmbedding(CONFIG, storage)(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[-1].storage.get_config()["numa_node"] == 0
    ids = np.array([[3, 4]], np.int64)
    np.testing.assert_array_equal(loaded(ids), model(ids))
