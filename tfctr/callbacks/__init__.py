"""Callbacks for `model.fit`."""

from tfctr.callbacks.checkpoint import Checkpoint
from tfctr.callbacks.k_step_merge import KStepMerge
from tfctr.callbacks.step_losses import StepLosses
from tfctr.callbacks.throughput import Throughput
from tfctr.callbacks.training_guard import (
    TrainingDiverged,
    TrainingGuard,
    check_callbacks,
)
from tfctr.callbacks.training_report import TrainingReport

__all__ = [
    "Checkpoint",
    "KStepMerge",
    "StepLosses",
    "Throughput",
    "TrainingDiverged",
    "TrainingGuard",
    "TrainingReport",
    "check_callbacks",
]
