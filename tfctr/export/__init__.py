"""Takes what was learned out of a model."""

from tfctr.export.vectors import vectors

__all__ = ["vectors"]
