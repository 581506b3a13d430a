"""Refuses what would train a model with tables wrongly, before the first step."""

from collections.abc import Iterable
from typing import Any

import keras

from keras_layers.dynamic_embedding import layers_of


class TrainingGuard(keras.callbacks.Callback):
    """Checks the compiled optimizer when training begins.

    A table moves its rows during the backward pass and cannot see what the optimizer of
    `model.compile` does around it. Three settings would make the two disagree without a
    word: loss scaling, gradient accumulation, and Horovod's Keras wrapper. All tfctr
    callbacks make this check.

    Raises:
        ValueError: When training begins, if the optimizer has such a setting.

    Example:

    >>> TrainingGuard().set_model(None)
    """

    def on_train_begin(self, logs: Any = None) -> None:
        tables = layers_of(self.model)
        if tables:
            check_optimizer(self.model.optimizer, f"Layer '{tables[0].name}'")
        elif not self.model.built:
            # Its tables do not show yet, and after the first step it is too late.
            owner = f"Model '{self.model.name}', not built yet, may have tables and"
            check_optimizer(self.model.optimizer, owner)


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
            "the plain Keras optimizer."
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
