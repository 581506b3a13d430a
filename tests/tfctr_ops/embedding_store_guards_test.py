"""What keeps a table whole when something is wrong from outside."""

import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import EmbeddingStore, RowInitializer, Rows, SparseOptimizer, StoreConfig

IDS = tf.constant([5, 9], tf.int64)
FEATURE = tf.constant([0])


def trained_store(optimizer=None):
    config = StoreConfig(
        "ads",
        2,
        optimizer or SparseOptimizer("adagrad"),
        RowInitializer("constant", 1.0),
        feature_seeds=(7,),
        default_row=(0.0, 0.0),
    )
    store = EmbeddingStore(config)
    train(store, 0.5)
    return store


def train(store, learning_rate):
    _, ticket = store.lookup(IDS, FEATURE)
    store.update(ticket, tf.ones((2, 2)), learning_rate)


def columns(store):
    return [column.numpy().tolist() for column in store.export_rows()]


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({}, -7),
        ({"last_steps": [2, 1]}, 1),
        ({"last_steps": [-1, 1]}, 1),
        ({"counts": [-1, 1]}, 1),
        ({"features": [0, -1]}, 1),
        ({"values": [[np.nan] * 4, [1.0] * 4]}, 1),
    ],
)
def test_rows_that_no_store_gave_are_refused_and_change_nothing(change, step):
    store = trained_store()
    before = columns(store)
    rows = store.export_rows()
    rows = rows._replace(
        **{
            name: tf.constant(value, getattr(rows, name).dtype)
            for name, value in change.items()
        }
    )
    message = f"Table 'ads' takes rows as it gave them.*with step={step}"
    for take in (store.import_rows, store.put_rows):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            take(rows, step)
        assert columns(store) == before


def test_rows_that_are_put_undo_no_update():
    store = trained_store()
    step = store.stats()["step"]
    before = columns(store)
    none = Rows(*(column[:0] for column in store.export_rows()))
    for put, expected in ((step - 1, step), (step + 3, step + 3)):
        store.put_rows(none, put)
        assert (columns(store), store.stats()["step"]) == (before, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_not_written(bad):
    store = trained_store()
    before = columns(store)
    message = "Table 'ads' takes finite weights only. Received: weights with NaN"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        store.write(IDS, FEATURE, tf.constant([[1.0, bad], [1.0, 1.0]]))
    assert columns(store) == before


def test_a_gradient_of_rows_that_an_import_replaced_is_dropped():
    store = trained_store()
    rows = store.export_rows()
    _, ticket = store.lookup(IDS, FEATURE)
    store.import_rows(rows, 1)
    before = columns(store)
    assert int(store.update(ticket, tf.ones((2, 2)), 0.5)) == 1
    assert columns(store) == before


def test_ftrl_at_a_learning_rate_of_zero_moves_nothing():
    # A warm-up begins there, and the formula would divide by it.
    store = trained_store(SparseOptimizer("ftrl"))
    before = store.read(IDS, FEATURE).numpy()
    train(store, 0.0)
    np.testing.assert_array_equal(store.read(IDS, FEATURE), before)


EXHAUSTION = """
import resource
import tensorflow as tf
from tfctr_ops import EmbeddingStore, RowInitializer, Rows, SparseOptimizer, StoreConfig
config = StoreConfig("ads", 64, SparseOptimizer("adam"), RowInitializer("constant"),
                     feature_seeds=(7,), default_row=(0.0,) * 64, num_threads=THREADS)
store = EmbeddingStore(config)
feature = tf.constant([0])
def train(start, n):
    ids = tf.range(start, start + n, dtype=tf.int64)
    _, ticket = store.lookup(ids, feature)
    store.update(ticket, tf.ones((n, 64)), 0.1)
train(0, 1000)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), -1))
try:
    for start in range(1000, 10**7, 20000):
        train(start, 20000)
except tf.errors.ResourceExhaustedError as error:
    print(error.message)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
train(0, 1000)
stats = store.stats()
print(stats["step"] > 1, len(store.export_rows().ids) == stats["known_rows"])
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_system_without_memory_is_an_error_and_the_store_goes_on(threads):
    code = EXHAUSTION.replace("THREADS", str(threads))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, last = done.stdout.strip().splitlines()
    expected = (
        r"The system has no memory left for table 'ads'\. Bound the rows with "
        r"TieredStorage\(ram=\.\.\.\)|OOM when allocating"
    )
    assert re.search(expected, first), first
    assert last == "True True"
