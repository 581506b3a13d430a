"""Metrics for `model.compile`, whose states add up over batches and over ranks."""

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="tfctr")
class NormalizedEntropy(keras.metrics.Metric):
    """`normalized_entropy` over the batches of an epoch.

    `MetricAverage` makes one of those of all ranks. Before there are labels of both
    kinds the result is NaN.

    Args:
        name: String.
        dtype: String. Of the sums.

    Example:

    >>> metric = NormalizedEntropy()
    >>> metric.update_state([[1.0], [0.0]], [[0.5], [0.5]])
    >>> round(float(metric.result()), 5)
    1.0
    """

    # See `tfctr.distributed.MetricAverage`.
    sums_over_ranks = True

    def __init__(
        self, name: str = "normalized_entropy", dtype: str | None = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._loss = self.add_weight(name="loss", initializer="zeros")
        self._clicks = self.add_weight(name="clicks", initializer="zeros")
        self._weight = self.add_weight(name="weight", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels, given, weights = _flat(y_true, y_pred, sample_weight, self.dtype)
        losses = keras.losses.binary_crossentropy(labels[:, None], given[:, None])
        self._loss.assign_add(keras.ops.sum(weights * losses))
        self._clicks.assign_add(keras.ops.sum(weights * labels))
        self._weight.assign_add(keras.ops.sum(weights))

    def result(self) -> Any:
        rate = self._clicks / self._weight
        entropy = -(
            rate * keras.ops.log(rate) + (1.0 - rate) * keras.ops.log(1.0 - rate)
        )
        return self._loss / self._weight / entropy


@keras.saving.register_keras_serializable(package="tfctr")
class Calibration(keras.metrics.Metric):
    """`calibration` over the batches of an epoch.

    `MetricAverage` makes one of those of all ranks. Before the first click the result
    is infinite or NaN.

    Args:
        name: String.
        dtype: String. Of the sums.

    Example:

    >>> metric = Calibration()
    >>> metric.update_state([[1.0], [0.0]], [[0.5], [0.25]])
    >>> float(metric.result())
    0.75
    """

    sums_over_ranks = True

    def __init__(self, name: str = "calibration", dtype: str | None = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._predicted = self.add_weight(name="predicted", initializer="zeros")
        self._clicks = self.add_weight(name="clicks", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels, given, weights = _flat(y_true, y_pred, sample_weight, self.dtype)
        self._predicted.assign_add(keras.ops.sum(weights * given))
        self._clicks.assign_add(keras.ops.sum(weights * labels))

    def result(self) -> Any:
        return self._predicted / self._clicks


def _flat(y_true: Any, y_pred: Any, sample_weight: Any, dtype: str) -> list[Any]:
    """Returns labels, probabilities and weights, each `(n,)`."""
    labels = keras.ops.reshape(keras.ops.cast(y_true, dtype), (-1,))
    given = keras.ops.reshape(keras.ops.cast(y_pred, dtype), (-1,))
    weights = keras.ops.ones_like(labels)
    if sample_weight is not None:
        # Times ones, since one number may stand for all.
        weights *= keras.ops.reshape(keras.ops.cast(sample_weight, dtype), (-1,))
    return [labels, given, weights]
