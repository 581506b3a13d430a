"""Optimizers for tables, beside those of Keras."""

from tfctr.optimizers.sparse import RowwiseAdagrad, RowwiseAdam

__all__ = ["RowwiseAdagrad", "RowwiseAdam"]
