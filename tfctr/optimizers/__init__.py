"""Optimizers, beside those of Keras: of tables, and of the weights of many ranks."""

from tfctr.optimizers.cow_clip import CowClip
from tfctr.optimizers.hyperparameters import Hyperparameters, scale_hyperparameters
from tfctr.optimizers.k_step_adam import KStepAdam
from tfctr.optimizers.learning_rate import scale_learning_rate
from tfctr.optimizers.linear_warmup import LinearWarmup
from tfctr.optimizers.sparse import RowwiseAdagrad, RowwiseAdam

__all__ = [
    "CowClip",
    "Hyperparameters",
    "KStepAdam",
    "LinearWarmup",
    "RowwiseAdagrad",
    "RowwiseAdam",
    "scale_hyperparameters",
    "scale_learning_rate",
]
