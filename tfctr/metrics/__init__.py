"""Metrics of click prediction, exact, in NumPy."""

from tfctr.metrics.auc import auc
from tfctr.metrics.log_loss import log_loss

__all__ = ["auc", "log_loss"]
