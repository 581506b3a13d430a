"""What all ranks must agree on before they train one model."""

import warnings
from typing import Any

import keras

from keras_layers.dynamic_embedding import layers_of
from tfctr.distributed import engine


def merges_weights(optimizer: Any) -> bool:
    """Returns whether an optimizer averages the ranks' weights, not their gradients.

    `tfctr.optimizers.KStepAdam` says so by an attribute of this name: it stands above.
    """
    return bool(getattr(optimizer, "merges_weights", False))


def exchange_of(optimizer: Any) -> str | None:
    """Returns how an optimizer exchanges gradients; `None` if it does not."""
    return getattr(optimizer, "gradient_exchange", None)


_is_known = False


def note_exchange() -> None:
    """Notes that the dense weights of a model are not left to each rank."""
    global _is_known
    _is_known = True


def warn_if_unknown() -> None:
    """Warns, once, if nothing of tfctr takes care of the dense weights."""
    if _is_known or engine.size() == 1:
        return
    note_exchange()
    warnings.warn(
        f"A table is trained by {engine.size()} ranks, and nothing of tfctr has seen "
        "the dense weights: they may part. Horovod's own Keras wrapper averages "
        "nothing under Keras 3, and says nothing. Compile with "
        "tfctr.distributed.DistributedOptimizer(optimizer), and fit with "
        "callbacks=[tfctr.distributed.BroadcastCallback()].",
        stacklevel=2,
    )


def check_ranks(model: keras.Model) -> None:
    """Raises `ValueError` if each of several ranks would train a model of its own.

    Args:
        model: Keras model.
    """
    note_exchange()
    if engine.size() == 1:
        return
    optimizer = model.optimizer
    if exchange_of(optimizer) is None and not merges_weights(optimizer):
        raise ValueError(
            f"{engine.size()} ranks must train one model. Received: "
            f"{type(optimizer).__name__}, an optimizer that knows its own rank only. "
            "Compile with tfctr.distributed.DistributedOptimizer(optimizer)."
        )
    for layer in layers_of(model):
        if not layer.storage.spans_ranks:
            raise ValueError(
                f"{engine.size()} ranks must train one set of rows. Received: "
                f"layer '{layer.name}' with {type(layer.storage).__name__}, which "
                "knows its own rank only. Make it with "
                "storage=tfctr.distributed.ShardedStorage(...), or "
                "ReplicatedStorage(...), around that storage."
            )


def check_not_compiled_by_xla(model: keras.Model) -> None:
    """Raises `ValueError` if XLA, which knows no exchanges, compiles the steps."""
    if engine.size() > 1 and model.jit_compile:
        raise ValueError(
            "Ranks cannot exchange anything inside of what XLA has compiled. "
            "Received: jit_compile=True. Say model.compile(..., jit_compile=False)."
        )
