"""Stops what trains a model with tables wrongly, if possible before the first step."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from keras_layers.dynamic_embedding import DynamicEmbedding, layers_of
from keras_layers.storage.tfra.import_guard import warn_of_tfra_layers
from tfctr.distributed.ranks import check_ranks

# So many skipped updates in a row are no accident.
_SKIPS_IN_A_ROW = 10


class TrainingDiverged(ValueError):
    """The weights of a model have left what can be trained.

    Example:

    >>> issubclass(TrainingDiverged, ValueError)
    True
    """


class TrainingGuard(keras.callbacks.Callback):
    """Stops a training that goes wrong without a word.

    When training begins it checks the compiled optimizer. A table moves its rows during
    the backward pass and cannot see what that optimizer does around it: loss scaling,
    gradient accumulation and Horovod's Keras wrapper would make the two disagree.

    During training it watches `TableConfig(bad_gradients="skip")`, which keeps a bad
    gradient from the rows, but not from the dense weights: these must stay finite, and
    the tables must not skip update after update. It looks at the weights when training
    begins, after an update was skipped, and at the end of each epoch.

    All tfctr callbacks do this but `TrainingReport`, which only looks on. Models
    without tables are left alone, except that on several ranks no model may have an
    optimizer, or a table, that knows its own only.

    Raises:
        ValueError: If the optimizer has such a setting, or the ranks would train
            apart.
        TrainingDiverged: If a dense weight is NaN or infinite, or a table skips ten
            updates in a row.

    Example:

    >>> TrainingGuard().set_model(None)
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_late = False
        self._layers: list[DynamicEmbedding] = []
        self._skips: dict[tuple[int, str], _Skips] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_late = not self.model.built
        self._layers = layers_of(self.model)
        # What an earlier training skipped does not count.
        self._skips = {
            (index, table): _Skips(stats["step"], stats["skipped_updates"])
            for index, table, stats in self._stats()
        }
        if self._layers:
            check_optimizer(self.model.optimizer, f"Layer '{self._layers[0].name}'")
            check_dense_weights(self.model)
        elif self._is_late:
            # Its tables do not show yet, and after the first step it is too late.
            owner = f"Model '{self.model.name}', not built yet, may have tables and"
            check_optimizer(self.model.optimizer, owner)
        check_ranks(self.model)
        warn_of_tfra_layers(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._is_late:
            self._is_late = False
            self._layers = layers_of(self.model)
            check_ranks(self.model)
        if self._has_new_skips():
            check_dense_weights(self.model)
            self._check_skips()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._layers:
            check_dense_weights(self.model)

    def _stats(self) -> Iterator[tuple[int, str, Mapping[str, int]]]:
        for index, layer in enumerate(self._layers):
            for table, stats in layer.stats().items():
                yield index, table, stats

    def _has_new_skips(self) -> bool:
        is_any = False
        for index, table, stats in self._stats():
            is_any |= self._skips.setdefault((index, table), _Skips()).look(stats)
        return is_any

    def _check_skips(self) -> None:
        for (index, table), skips in self._skips.items():
            if skips.in_a_row >= _SKIPS_IN_A_ROW:
                raise TrainingDiverged(
                    f"Table '{table}' of layer '{self._layers[index].name}' must not "
                    "skip update after update: it learns nothing. Received: "
                    f"{skips.in_a_row} in a row, whose gradients were NaN, infinite or "
                    "beyond 1e12. Lower the learning rate, or check the inputs and the "
                    "loss."
                )


@dataclasses.dataclass
class _Skips:
    """How many updates a table has made and skipped, and how many of late in a row."""

    updates: int = 0
    skipped: int = 0
    in_a_row: int = 0

    def look(self, stats: Mapping[str, int]) -> bool:
        """Returns whether an update was skipped since the last look."""
        skipped = stats["skipped_updates"] - self.skipped
        before = self.in_a_row if stats["step"] == self.updates else 0
        self.in_a_row = before + skipped
        self.updates, self.skipped = stats["step"], stats["skipped_updates"]
        return skipped > 0


def check_dense_weights(model: keras.Model) -> None:
    """Raises `TrainingDiverged` if a trainable weight of `model` is no number."""
    for weight in model.trainable_variables:
        if not keras.ops.all(keras.ops.isfinite(weight)):
            raise TrainingDiverged(
                "The dense weights must be finite to be trained. Received: NaN or "
                f"infinity in '{weight.path}'. A bad batch or a too high learning rate "
                "has spoilt them: load the last model you saved, and check the inputs, "
                "the labels and the learning rate."
            )


def check_optimizer(optimizer: Any, owner: str) -> None:
    """Raises `ValueError` if `optimizer` cannot train a model that has tables.

    Args:
        optimizer: Keras optimizer of `model.compile`.
        owner: String. What has tables, for the message.
    """
    wraps = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if wraps or optimizer.loss_scale_factor:
        raise ValueError(
            f"{owner} cannot train under loss scaling: its rows would move by the "
            "scaled gradients. Received: "
            + (
                f"{type(optimizer).__name__}. "
                if wraps
                else f"loss_scale_factor={optimizer.loss_scale_factor}. "
            )
            + "Use the policy 'mixed_bfloat16' or 'float32', which need none."
        )
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"{owner} cannot train under gradient accumulation: its rows would move at "
            "every step, the dense weights at some. Received: "
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}. "
            "Raise the batch size instead."
        )
    if any(kind.__module__.startswith("horovod") for kind in type(optimizer).__mro__):
        raise ValueError(
            "Horovod's DistributedOptimizer averages nothing under Keras 3: every rank "
            "would train a model of its own. Received: "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}. Compile with "
            "tfctr.distributed.DistributedOptimizer(...) of the plain Keras optimizer."
        )


def check_callbacks(callbacks: Iterable[Any], model: keras.Model) -> None:
    """Raises `ValueError` if a callback would lose the rows of the model's tables.

    A callback cannot see its neighbours, so whoever holds the list asks: call this
    before `model.fit(callbacks=callbacks)`.

    Args:
        callbacks: The callbacks of `fit`.
        model: Keras model.

    Example:

    >>> check_callbacks([keras.callbacks.History()], keras.Sequential())
    """
    for callback in callbacks:
        early = isinstance(callback, keras.callbacks.EarlyStopping)
        if not early or not callback.restore_best_weights:
            continue
        if not model.built:
            raise ValueError(
                "A model shows its tables only once it is built. Received: model "
                f"'{model.name}', not built, and restore_best_weights=True. Call the "
                "model once before this check."
            )
        tables = layers_of(model)
        if tables:
            raise ValueError(
                f"EarlyStopping cannot restore the rows of layer '{tables[0].name}': "
                "they are no Keras weights. Received: restore_best_weights=True. Leave "
                "it out, save with ModelCheckpoint(save_best_only=True, "
                "save_weights_only=True), and load_weights afterwards."
            )
