"""Metrics of click prediction: exact functions in NumPy, and metrics of Keras."""

from tfctr.metrics.auc import auc
from tfctr.metrics.calibration import calibration
from tfctr.metrics.group_auc import GroupAUC, group_auc
from tfctr.metrics.log_loss import log_loss
from tfctr.metrics.normalized_entropy import normalized_entropy
from tfctr.metrics.running import Calibration, NormalizedEntropy

__all__ = [
    "Calibration",
    "GroupAUC",
    "NormalizedEntropy",
    "auc",
    "calibration",
    "group_auc",
    "log_loss",
    "normalized_entropy",
]
