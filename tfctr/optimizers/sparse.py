"""Optimizers that exist for the rows of a table alone."""

import dataclasses
from typing import Self

import keras

from tfctr_ops import SparseOptimizer


@keras.saving.register_keras_serializable(package="tfctr")
@dataclasses.dataclass(frozen=True)
class RowwiseAdagrad:
    """Adagrad with one accumulator per row, fed by the mean of its squared gradients.

        a += mean(g²);  w -= learning_rate * g / sqrt(a + epsilon)

    It costs one number per row instead of one per weight, and is the usual choice for
    the largest tables. Give it to `TableConfig(optimizer=)`.

    Args:
        learning_rate: Float.
        initial_accumulator_value: Float. Start of the accumulator.
        epsilon: Float. Added below the root.

    Example:

    >>> table = TableConfig("ads", dim=16, optimizer=RowwiseAdagrad(0.01))
    >>> table.sparse_optimizer().kind
    'rowwise_adagrad'
    """

    learning_rate: float = 0.001
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def sparse_optimizer(self) -> SparseOptimizer:
        """Returns what an update does to a row."""
        return SparseOptimizer("rowwise_adagrad", **dataclasses.asdict(self))

    def get_config(self) -> dict[str, float]:
        """Returns the arguments."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, float]) -> Self:
        """Returns the optimizer with these arguments."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="tfctr")
@dataclasses.dataclass(frozen=True)
class RowwiseAdam:
    """Adam that corrects the bias of a row's moments by the row's own updates.

    `keras.optimizers.Adam` corrects by the number of the step: a row first seen late
    then takes a first step of up to 3.2 times the learning rate. Here every row's first
    step is one learning rate long. Give it to `TableConfig(optimizer=)`.

    Args:
        learning_rate: Float.
        beta_1: Float in [0, 1). Decay of the first moment.
        beta_2: Float in [0, 1). Decay of the second moment.
        epsilon: Float. Added to the denominator.
        weight_decay: Float. Share of the weights, times the learning rate, that a row
            loses at each of its updates.

    Example:

    >>> table = TableConfig("ads", dim=16, optimizer=RowwiseAdam(1e-3))
    >>> table.sparse_optimizer().bias_correction
    'row'
    """

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float = 0.0

    def sparse_optimizer(self) -> SparseOptimizer:
        """Returns what an update does to a row."""
        return SparseOptimizer(
            "adam", bias_correction="row", **dataclasses.asdict(self)
        )

    def get_config(self) -> dict[str, float]:
        """Returns the arguments."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, float]) -> Self:
        """Returns the optimizer with these arguments."""
        return cls(**config)
