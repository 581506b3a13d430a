"""Training on many ranks: Horovod for Keras 3, and tables sharded over the ranks."""

from tfctr.distributed.broadcast_callback import BroadcastCallback
from tfctr.distributed.dataset import shard, shard_examples
from tfctr.distributed.engine import init, is_main, local_rank, rank, size
from tfctr.distributed.metric_average import MetricAverage
from tfctr.distributed.optimizer import DistributedOptimizer, is_distributed
from tfctr.distributed.replicated_storage import ReplicatedStorage
from tfctr.distributed.saving import save_model
from tfctr.distributed.sharded_storage import ShardedStorage

__all__ = [
    "BroadcastCallback",
    "DistributedOptimizer",
    "MetricAverage",
    "ReplicatedStorage",
    "ShardedStorage",
    "init",
    "is_distributed",
    "is_main",
    "local_rank",
    "rank",
    "save_model",
    "shard",
    "shard_examples",
    "size",
]
