"""Optimizers, beside those of Keras: of tables, and of the weights of many ranks."""

from tfctr.optimizers.k_step_adam import KStepAdam
from tfctr.optimizers.learning_rate import scale_learning_rate
from tfctr.optimizers.sparse import RowwiseAdagrad, RowwiseAdam

__all__ = ["KStepAdam", "RowwiseAdagrad", "RowwiseAdam", "scale_learning_rate"]
