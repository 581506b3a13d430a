"""The ops that move rows on a GPU, run on this CPU, beside the one op of the CPU."""

import numpy as np
import pytest
import tensorflow as tf

from keras_layers import TableConfig
from tfctr_ops import SparseOptimizer

DIM = 4
RULES = {
    "sgd": SparseOptimizer("sgd", 0.1),
    "adagrad": SparseOptimizer("adagrad", 0.1, weight_decay=0.1),
    "rowwise_adagrad": SparseOptimizer("rowwise_adagrad", 0.1),
    "adam": SparseOptimizer("adam", 0.1),
    "adam per row": SparseOptimizer("adam", 0.1, bias_correction="row"),
    "ftrl": SparseOptimizer("ftrl", 0.1, l1=0.01),
    "clipping": SparseOptimizer("adam", 0.1, clip_ratio=0.5, l2_penalty=0.01),
}


def trained(storage, rule):
    """All rows after some steps, sorted by key."""
    table = storage.open(TableConfig("ads", dim=DIM, optimizer=rule), (1, 2))
    rng = np.random.default_rng(0)
    for step in range(4):
        ids = tf.constant(rng.integers(0, 15, 40))
        features = tf.constant(rng.integers(-1, 2, 20), tf.int32)
        rows, ticket = table.lookup(ids, features, tf.constant(step, tf.int64))
        gradients = rng.normal(size=(40, DIM)).astype("float32")
        table.update(ticket, tf.constant(gradients), tf.constant(0.1))
    rows = table.save_rows()
    order = np.lexsort((rows.ids, rows.features))
    return [column.numpy()[order] for column in rows], table.stats()["clipped_rows"]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rows_move_alike(rule, tfra_storage, monkeypatch):
    on_cpu, clipped = trained(tfra_storage(), rule)
    called = []

    def is_gpu(device):
        called.append(device)
        return True

    for module in ("trained_rows", "occurrences"):
        monkeypatch.setattr(f"keras_layers.storage.tfra.{module}.is_gpu", is_gpu)
    as_on_gpu, clipped_there = trained(tfra_storage(), rule)
    assert called
    for column, there in zip(on_cpu, as_on_gpu, strict=True):
        np.testing.assert_allclose(there, column, rtol=2e-5, atol=1e-6)
    assert clipped_there == clipped
    assert (clipped > 0) == (rule.clip_ratio is not None)
