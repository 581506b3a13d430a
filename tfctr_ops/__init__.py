"""The embedding store and its TensorFlow ops. Knows neither Keras nor Horovod."""

from tfctr_ops.embedding_store import EmbeddingStore, MemoryBudget, Rows, StoreConfig
from tfctr_ops.row_initializer import RowInitializer
from tfctr_ops.sparse_optimizer import SparseOptimizer

__all__ = [
    "EmbeddingStore",
    "MemoryBudget",
    "RowInitializer",
    "Rows",
    "SparseOptimizer",
    "StoreConfig",
]
