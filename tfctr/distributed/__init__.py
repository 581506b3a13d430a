"""Training on many ranks: Horovod for Keras 3, and tables sharded over the ranks."""

from tfctr.distributed.engine import init, is_main, local_rank, rank, size

__all__ = [
    "init",
    "is_main",
    "local_rank",
    "rank",
    "size",
]
