"""The embedding store and its TensorFlow ops. Knows neither Keras nor Horovod."""

from tfctr_ops.embedding_store import EmbeddingStore, Rows
from tfctr_ops.key_routes import KeyRoutes, features_of, route_keys
from tfctr_ops.row_initializer import RowInitializer
from tfctr_ops.snapshot import (
    SnapshotFile,
    SnapshotInfo,
    StoreFiles,
    find_damage,
    inspect_store,
    read_info,
)
from tfctr_ops.sparse_optimizer import SparseOptimizer
from tfctr_ops.store_config import MemoryBudget, StoreConfig

__all__ = [
    "EmbeddingStore",
    "KeyRoutes",
    "MemoryBudget",
    "RowInitializer",
    "Rows",
    "SnapshotFile",
    "SnapshotInfo",
    "SparseOptimizer",
    "StoreConfig",
    "StoreFiles",
    "features_of",
    "find_damage",
    "inspect_store",
    "read_info",
    "route_keys",
]
