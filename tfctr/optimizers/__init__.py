"""Optimizers for tables, beside those of Keras; and what goes with optimizers."""

from tfctr.optimizers.learning_rate import scale_learning_rate
from tfctr.optimizers.sparse import RowwiseAdagrad, RowwiseAdam

__all__ = ["RowwiseAdagrad", "RowwiseAdam", "scale_learning_rate"]
