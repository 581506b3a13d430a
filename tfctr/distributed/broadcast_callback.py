"""`BroadcastCallback`: all ranks begin with the weights of rank 0."""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers.dynamic_embedding import DynamicEmbedding, layers_of
from tfctr.distributed import engine
from tfctr.distributed.ranks import (
    check_not_compiled_by_xla,
    check_ranks,
    exchange_of,
    merges_weights,
)


class BroadcastCallback(keras.callbacks.Callback):
    """Gives the dense weights and the optimizer of rank 0 to all ranks.

    When training begins. Before that it checks that all ranks train the same model: the
    same layers, tables, optimizers and seeds. Rows are not sent: equal seeds make them
    equal, and where they were trained before, all ranks must have loaded them.

    A model without tables that is not built yet is looked at after its first batch; a
    model with tables must be built, or called once, before `fit`.

    Alone it does nothing.

    Raises:
        ValueError: If the models of the ranks differ, a model with tables is not built,
            the optimizer or a table knows its own rank only, or the model is compiled
            with `jit_compile=True`, which knows no exchanges.

    Example:

    >>> BroadcastCallback().set_model(None)
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_late = False

    def on_train_begin(self, logs: Any = None) -> None:
        if engine.size() == 1:
            return
        check_not_compiled_by_xla(self.model)
        built = engine.gather_objects(self.model.built, "broadcast.built")
        # Of what all ranks have alike, so that none of them waits for another.
        if all(built) or not any(built):
            check_ranks(self.model)
        self._is_late = not any(built)
        if all(built):
            broadcast_model(self.model)
        elif any(built):
            raise ValueError(
                "A model must be built on all ranks, or on none. Received: built="
                f"{self.model.built} on rank {engine.rank()}. Load or call it on all."
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._is_late:
            return
        self._is_late = False
        layers = layers_of(self.model)
        if layers:
            raise ValueError(
                "A model with tables must be built before it trains on several ranks. "
                f"Received: model '{self.model.name}', built by its first batch, with "
                f"the layer '{layers[0].name}'. Call it once before `fit`, on all "
                "ranks: model(inputs)."
            )
        check_ranks(self.model)
        broadcast_model(self.model)


def broadcast_model(model: keras.Model) -> None:
    """Gives the dense weights and the optimizer of rank 0 to all ranks.

    Raises:
        ValueError: If the models differ.
    """
    layers = layers_of(model)
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    # Of a table's variables, one is nothing, and the others go with its rows.
    of_tables = {id(variable) for layer in layers for variable in layer.variables}
    variables = [
        variable
        for variable in [*model.variables, *_shared_variables(optimizer)]
        if id(variable) not in of_tables
    ]
    facts = [
        *(f"layer of class {type(layer).__name__}" for layer in model.layers),
        *_facts_of_tables(layers),
        *_facts_of_optimizer(optimizer),
        *(f"weight of {tuple(part.shape)}, {part.dtype}" for part in variables),
    ]
    _check_equal(facts)
    for variable in variables:
        value = keras.ops.convert_to_numpy(variable)
        # As bytes, since not every dtype can be sent.
        sent = tf.constant(np.frombuffer(value.tobytes(), np.uint8))
        received = engine.broadcast(sent, "broadcast.weights").numpy()
        variable.assign(
            np.frombuffer(received.tobytes(), value.dtype).reshape(value.shape)
        )


def _shared_variables(optimizer: Any) -> list[Any]:
    """What the ranks' optimizers have in common.

    One that merges the weights now and then has moments of its own on each rank, once
    it has begun.
    """
    has_own = merges_weights(optimizer) and int(optimizer.iterations) > 0
    return [] if has_own else list(optimizer.variables)


def _facts_of_tables(layers: list[DynamicEmbedding]) -> Iterator[str]:
    for layer in layers:
        for name, seed in layer.seeds.items():
            yield f"seed of table '{name}': {seed}"
        for name, feature in layer.features.items():
            table = feature.table
            owner = f"table '{table.name}' of feature '{name}'"
            yield f"dim of {owner}: {table.dim}"
            yield f"optimizer of {owner}: {table.sparse_optimizer()}"
            yield f"initializer of {owner}: {table.row_initializer()}"
        steps = [int(part) for part in layer.variables if part is not layer.anchor]
        yield f"updates of the tables of layer '{layer.name}': {steps}"


def _facts_of_optimizer(optimizer: Any) -> Iterator[str]:
    yield f"optimizer {type(optimizer).__name__}"
    yield f"exchange of gradients: {exchange_of(optimizer)}"
    for key, value in sorted(optimizer.get_config().items()):
        # The learning rate is sent, unless it is a schedule.
        if key not in ("name", "learning_rate") or isinstance(value, dict):
            yield f"{key} of the optimizer: {value}"


def _check_equal(facts: list[str]) -> None:
    """Raises `ValueError`, on all ranks, if the facts of the ranks differ."""
    first, *others = engine.gather_objects(facts, "broadcast.facts")
    for rank, other in enumerate(others, 1):
        for here, there in itertools.zip_longest(first, other, fillvalue="nothing"):
            if here != there:
                raise ValueError(
                    f"All ranks must train the same model. Received: {here} on rank 0, "
                    f"{there} on rank {rank}. Make the model in the same way on all "
                    "ranks, after keras.utils.set_random_seed(...) with one seed, "
                    "which the seeds of the tables follow."
                )
