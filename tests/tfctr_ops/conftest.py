"""Stores to test, with defaults whose arithmetic is exact."""

import pytest

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
