"""Takes what was learned out of a model."""

from tfctr.export.checking import check
from tfctr.export.saved_model import saved_model
from tfctr.export.vectors import vectors

__all__ = ["check", "saved_model", "vectors"]
