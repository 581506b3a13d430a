"""Callbacks for `model.fit`."""

from tfctr.callbacks.throughput import Throughput
from tfctr.callbacks.training_guard import TrainingGuard, check_callbacks

__all__ = ["Throughput", "TrainingGuard", "check_callbacks"]
