"""Training on many ranks: Horovod for Keras 3, and tables sharded over the ranks."""

from tfctr.distributed.engine import init, is_main, local_rank, rank, size
from tfctr.distributed.replicated_storage import ReplicatedStorage
from tfctr.distributed.saving import save_model
from tfctr.distributed.sharded_storage import ShardedStorage

__all__ = [
    "ReplicatedStorage",
    "ShardedStorage",
    "init",
    "is_main",
    "local_rank",
    "rank",
    "save_model",
    "size",
]
