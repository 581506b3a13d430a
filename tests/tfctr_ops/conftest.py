"""Stores to test, with defaults whose arithmetic is exact."""

import pytest

from helpers import snapshots
from tfctr_ops import (
    EmbeddingStore,
    MemoryBudget,
    RowInitializer,
    SparseOptimizer,
    StoreConfig,
    library,
)


@pytest.fixture
def make_store():
    """Makes a store of two features whose rows start as ones; SGD halves gradients."""

    def make(limit_bytes=None, budget=None, dim=2, **options):
        config = {
            "table": "users",
            "optimizer": SparseOptimizer("sgd", learning_rate=0.5),
            "initializer": RowInitializer("constant", 1.0),
            "feature_seeds": (1, 2),
            "default_row": (0.0,) * dim,
            **options,
        }
        if limit_bytes is not None:
            budget = MemoryBudget(limit_bytes)
        return EmbeddingStore(StoreConfig(dim=dim, **config), budget)

    return make


@pytest.fixture
def make_mix(make_store, tmp_path):
    """Makes a store whose rows differ in every bit, in one of snapshots.MIXES."""

    def make(mix, **options):
        options = {
            "dim": snapshots.DIM,
            "optimizer": SparseOptimizer("adagrad", learning_rate=0.1),
            "initializer": RowInitializer("uniform", 0.0, 0.5),
            **options,
        }
        if snapshots.MIXES[mix] is not None:
            ssd = str(tmp_path / "ssd")
            options |= {
                "limit_bytes": snapshots.MIXES[mix],
                "eviction_policy": "clock",
                "ssd_directory": ssd,
            }
        return make_store(**options)

    return make


@pytest.fixture
def raw_store():
    """Calls the op that makes a store, in eager mode or in a graph."""

    def make(budget, **attributes):
        defaults = {
            "table": "users",
            "dim": 2,
            "feature_seeds": [1],
            "default_row": [0.0, 0.0],
            "initializer": "constant",
            "initializer_location": 1.0,
            "initializer_scale": 0.0,
            "optimizer": "sgd",
            "beta_1": 0.9,
            "beta_2": 0.999,
            "epsilon": 1e-7,
            "per_row_bias_correction": False,
            "weight_decay": 0.0,
            "initial_accumulator": 0.1,
            "learning_rate_power": -0.5,
            "l1": 0.0,
            "l2": 0.0,
            "l2_shrinkage": 0.0,
            "beta": 0.0,
        }
        return library.load().tfctr_embedding_store(budget, **defaults | attributes)

    return make
