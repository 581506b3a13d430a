"""Training on many ranks: Horovod for Keras 3, and tables sharded over the ranks."""

from tfctr.distributed.engine import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather_objects,
    init,
    is_main,
    local_rank,
    rank,
    size,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather_objects",
    "init",
    "is_main",
    "local_rank",
    "rank",
    "size",
]
