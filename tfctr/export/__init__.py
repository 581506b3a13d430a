"""Takes what was learned out of a model."""

from tfctr.export.checking import check
from tfctr.export.deltas import apply_delta, delta
from tfctr.export.saved_model import saved_model
from tfctr.export.vectors import vectors

__all__ = ["apply_delta", "check", "delta", "saved_model", "vectors"]
