"""`TableLookup`: tables of a layer that are looked up, and updated, in one call."""

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_layers.storage.storage import Lookup, Storage, Update
from keras_layers.table_group import Keys, TableGroup


class TableLookup:
    """Tables of one storage and one row width, and the way of gradients to them.

    Args:
        storage: `Storage` that has opened the tables.
        groups: `TableGroup`s, open.
    """

    def __init__(self, storage: Storage, groups: Sequence[TableGroup]) -> None:
        self._storage = storage
        self.groups = tuple(groups)

    def lookup(self, anchor: tf.Tensor, keys: Sequence[Keys]) -> list[tf.Tensor]:
        """Returns rows of each table whose gradient moves it when it is taken.

        The gradient with respect to `anchor`, a scalar, is what a training step asks
        for; it is zero, and on the way to it the tables are updated.
        """
        # TensorFlow keeps the gradient functions of graphs for as long as the process
        # lives, and all that they refer to.
        this: Any = (lambda: self) if tf.executing_eagerly() else weakref.ref(self)

        @tf.custom_gradient
        def lookup(anchor: tf.Tensor) -> Any:
            with self._one_at_a_time():
                found = self._storage.lookup(self._asked(keys))
            tickets = [ticket for _, ticket in found]

            def update(*upstream: tf.Tensor) -> tf.Tensor:
                this()._update(tickets, upstream)
                return tf.zeros_like(anchor)

            return [rows for rows, _ in found], update

        rows: list[tf.Tensor] = lookup(anchor)
        return rows

    def read(self, keys: Sequence[Keys]) -> list[tf.Tensor]:
        """Returns rows of each table without a gradient, and changes nothing."""
        with self._one_at_a_time():
            return self._storage.read(self._asked(keys))

    def read_untold(
        self, anchor: tf.Tensor, keys: Sequence[Keys], layer: str
    ) -> list[tf.Tensor]:
        """As `read`, for a call that nobody told whether it is training.

        A gradient through it is an error: without one, a model whose `call` has no
        argument `training` would fit everything but the table, and say nothing.
        """
        found = self.read(keys)

        @tf.custom_gradient
        def read(anchor: tf.Tensor) -> Any:
            def refuse(*upstream: tf.Tensor) -> tf.Tensor:
                raise ValueError(
                    f"Layer '{layer}' expects to be told whether it is training "
                    "before a gradient is taken through it. Received: training=None. "
                    "To train: give your model's `call` the argument, and Keras hands "
                    "it on, def call(self, inputs, training=None); in a loop of your "
                    "own, say model(inputs, training=True). To leave the table as it "
                    "is: training=False."
                )

            return [tf.identity(each) for each in found], refuse

        rows: list[tf.Tensor] = read(anchor)
        return rows

    def _asked(self, keys: Sequence[Keys]) -> list[Lookup]:
        return [
            Lookup(
                group.table,
                of_group.ids,
                of_group.features,
                tf.convert_to_tensor(group.step.value),
            )
            for group, of_group in zip(self.groups, keys, strict=True)
        ]

    def _update(self, tickets: Sequence[Any], upstream: Sequence[tf.Tensor]) -> None:
        updates = [
            Update(
                group.table,
                ticket,
                tf.convert_to_tensor(gradients),
                group.learning_rate(),
            )
            for group, ticket, gradients in zip(
                self.groups, tickets, upstream, strict=True
            )
        ]
        with self._one_at_a_time():
            steps = self._storage.update(updates)
            for group, step in zip(self.groups, steps, strict=True):
                group.step.assign(step)

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        with contextlib.ExitStack() as locks:
            for group in self.groups:
                locks.enter_context(group.one_at_a_time())
            yield


def group_lookups(storage: Storage, groups: Sequence[TableGroup]) -> list[TableLookup]:
    """Joins the tables that are looked up in one call.

    Those of one width, where a call is an exchange between ranks. Else each by itself:
    a table without a gradient in a step is then left as it is.
    """
    if not storage.spans_ranks:
        return [TableLookup(storage, [group]) for group in groups]
    by_width: dict[int, list[TableGroup]] = {}
    for group in groups:
        by_width.setdefault(group.config.dim, []).append(group)
    return [TableLookup(storage, joined) for joined in by_width.values()]
