"""Checkpoints: model, dense optimizer, tables, data position and random state."""

from tfctr.checkpoint.dense_state import read_dense, write_dense
from tfctr.checkpoint.directory import CheckpointDirectory
from tfctr.checkpoint.inspection import inspect
from tfctr.checkpoint.random_state import get_random_state, set_random_state
from tfctr.checkpoint.weights import restore_weights

__all__ = [
    "CheckpointDirectory",
    "get_random_state",
    "inspect",
    "read_dense",
    "restore_weights",
    "set_random_state",
    "write_dense",
]
