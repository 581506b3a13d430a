"""`MetricAverage`: the metrics of all ranks together."""

from collections.abc import Iterator, MutableMapping
from typing import Any

import keras

from tfctr.distributed import engine
from tfctr.distributed.ranks import check_ranks

# What these count is a sum over the examples.
_SUMS = (
    keras.metrics.Mean,
    keras.metrics.Sum,
    keras.metrics.AUC,
    keras.metrics.Precision,
    keras.metrics.Recall,
    keras.metrics.TruePositives,
    keras.metrics.TrueNegatives,
    keras.metrics.FalsePositives,
    keras.metrics.FalseNegatives,
    keras.metrics.SensitivityAtSpecificity,
    keras.metrics.SpecificityAtSensitivity,
    keras.metrics.PrecisionAtRecall,
    keras.metrics.RecallAtPrecision,
    keras.metrics.FBetaScore,
    keras.metrics.IoU,
    keras.metrics.MeanIoU,
    keras.metrics.R2Score,
)


class MetricAverage(keras.callbacks.Callback):
    """Logs metrics over the examples of all ranks, instead of those of this rank.

    What each rank's metrics have counted is summed at the end of an epoch and of an
    evaluation, and the result taken of the sums. So an AUC is that of all examples, and
    not the mean of the ranks' AUCs. Every rank logs the same, the `val_` metrics of
    `fit` too; each goes on with its own counts.

    Callbacks that read the logs, such as `EarlyStopping`, stand behind this one.
    `model.evaluate` itself returns what this rank has: read `results`, the metrics of
    the last evaluation by name.

    The metrics of Keras are such sums, and so is what subclasses them without states of
    another kind. A class of your own says that all its states are sums by an attribute
    `sums_over_ranks = True`. Logs of a `train_step` of your own that are no metrics of
    the model stay as they are. For slices of unequal sizes see `shard`.

    Alone it changes nothing.

    Raises:
        ValueError: If a metric is none of these, or the ranks would train apart.

    Example:

    >>> MetricAverage().results
    {}
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Any] = {}
        self._is_training = False
        self._of_epoch: dict[str, Any] | None = None
        self._is_checked = False

    def on_train_begin(self, logs: Any = None) -> None:
        check_ranks(self.model)
        self._is_training, self._is_checked = True, False

    def on_train_end(self, logs: Any = None) -> None:
        self._is_training = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._of_epoch = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Now the metrics exist.
        if not self._is_checked and engine.size() > 1:
            _check_metrics(self.model)
        self._is_checked = True

    def on_test_begin(self, logs: Any = None) -> None:
        # Next, Keras resets the metrics, and validation has them for its own.
        if self._is_training and self._of_epoch is None:
            self._of_epoch = total_metrics(self.model)

    def on_test_end(self, logs: Any = None) -> None:
        self.results = dict(logs or {})
        _replace(self.results, total_metrics(self.model))
        if logs is not None:
            logs.update(self.results)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is None:
            return
        totals = total_metrics(self.model) if self._of_epoch is None else self._of_epoch
        _replace(logs, totals)
        _replace(logs, {f"val_{name}": value for name, value in self.results.items()})


def total_metrics(model: keras.Model) -> dict[str, Any]:
    """Returns the metrics of a model over the examples of all ranks; none if alone.

    Raises:
        ValueError: If a metric's states are no sums.
    """
    if engine.size() == 1:
        return {}
    _check_metrics(model)
    variables = model.metrics_variables
    own = [keras.ops.copy(variable) for variable in variables]
    totals = engine.all_reduce(own, "metrics")
    try:
        for variable, total in zip(variables, totals, strict=True):
            variable.assign(total)
        results = model.get_metrics_result()
        return {name: _to_python(value) for name, value in results.items()}
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def _to_python(value: Any) -> Any:
    value = keras.ops.convert_to_numpy(value)
    return float(value) if value.ndim == 0 else value


def _replace(logs: MutableMapping[str, Any], values: dict[str, Any]) -> None:
    logs.update({name: value for name, value in values.items() if name in logs})


def _check_metrics(model: keras.Model) -> None:
    for metric in _metrics_of(model):
        if isinstance(metric, _SUMS) or getattr(metric, "sums_over_ranks", False):
            continue
        raise ValueError(
            "The metrics of several ranks are those of their summed states. Received: "
            f"the metric '{metric.name}' of class {type(metric).__name__}, whose "
            "states need not be sums. If they are, give the class an attribute "
            "sums_over_ranks = True; if not, evaluate it on one rank."
        )


def _metrics_of(model: keras.Model) -> Iterator[keras.metrics.Metric]:
    for metric in model.metrics:
        # Those of `compile` stand in one that is only their list.
        yield from getattr(metric, "metrics", [metric])
