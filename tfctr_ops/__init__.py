"""The embedding store and its TensorFlow ops. Knows neither Keras nor Horovod."""

from tfctr_ops.delimited_text import (
    ParsedText,
    PlacedText,
    parse_delimited,
    parse_delimited_to,
)
from tfctr_ops.distinct_keys import (
    BatchKeys,
    distinct_keys,
    gather_weights,
    sum_gradients,
)
from tfctr_ops.embedding_store import EmbeddingStore, Rows
from tfctr_ops.fused_rows import update_fused_rows
from tfctr_ops.key_routes import KeyRoutes, SentKeys, read_key_messages, route_keys
from tfctr_ops.row_initializer import RowInitializer
from tfctr_ops.sample_counts import sample_counts
from tfctr_ops.snapshot import (
    SnapshotFile,
    SnapshotInfo,
    StoreFiles,
    find_damage,
    inspect_store,
    read_info,
)
from tfctr_ops.sparse_optimizer import SparseOptimizer
from tfctr_ops.step_times import StepTimes, step_times
from tfctr_ops.store_config import MemoryBudget, StoreConfig

__all__ = [
    "BatchKeys",
    "EmbeddingStore",
    "KeyRoutes",
    "MemoryBudget",
    "ParsedText",
    "PlacedText",
    "RowInitializer",
    "Rows",
    "SentKeys",
    "SnapshotFile",
    "SnapshotInfo",
    "SparseOptimizer",
    "StepTimes",
    "StoreConfig",
    "StoreFiles",
    "distinct_keys",
    "find_damage",
    "gather_weights",
    "inspect_store",
    "parse_delimited",
    "parse_delimited_to",
    "read_info",
    "read_key_messages",
    "route_keys",
    "sample_counts",
    "step_times",
    "sum_gradients",
    "update_fused_rows",
]
