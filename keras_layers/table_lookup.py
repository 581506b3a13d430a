"""`TableLookup`: tables of a layer that are looked up, and updated, in one call."""

import contextlib
import os
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_layers.feature_ids import FlatIds
from keras_layers.frozen_tables import are_frozen, frozen
from keras_layers.storage.storage import Lookup, Storage, Update
from keras_layers.table_group import Keys, TableGroup
from tfctr_ops import sample_counts

Flat = Mapping[str, FlatIds]


class TableLookup:
    """Tables of one storage and one row width, and the way of gradients to them.

    Methods take the flat ids of all features of the layer by name, and return the
    outputs of those whose tables these are, in float32.

    Args:
        storage: `Storage` that has opened the tables.
        groups: `TableGroup`s, open.
    """

    def __init__(self, storage: Storage, groups: Sequence[TableGroup]) -> None:
        self._storage = storage
        self.groups = tuple(groups)

    def lookup(self, anchor: tf.Tensor, flat: Flat) -> dict[str, tf.Tensor]:
        """Returns outputs whose gradient moves the tables when it is taken.

        The gradient with respect to `anchor`, a scalar, is what a training step asks
        for; it is zero, and on the way to it the tables are updated. Those whose rows
        had no part in what the gradient is taken of are left as they are.
        """
        # TensorFlow keeps the gradient functions of graphs for as long as the process
        # lives, and all that they refer to.
        this: Any = (lambda: self) if tf.executing_eagerly() else weakref.ref(self)
        # A single one is not asked for unless it has one.
        has_gradient = [len(self.groups) == 1] * len(self.groups)

        @tf.custom_gradient
        def lookup(anchor: tf.Tensor) -> Any:
            with self._one_at_a_time():
                found = self._storage.lookup(self._asked(flat, trains=True))
            tickets = [ticket for _, ticket in found]

            def update(*upstream: tf.Tensor) -> tf.Tensor:
                this()._update(tickets, upstream, has_gradient)
                return tf.zeros_like(anchor)

            return [rows for rows, _ in found], update

        rows: list[tf.Tensor] = lookup(anchor)
        if len(rows) > 1:
            rows = [
                _note_gradient(of_table, has_gradient, place)
                for place, of_table in enumerate(rows)
            ]
        return self._finish(rows, flat)

    def read(self, flat: Flat) -> dict[str, tf.Tensor]:
        """Returns outputs without a gradient, and changes nothing."""
        return self._finish(self._read(flat), flat)

    def read_untold(
        self, anchor: tf.Tensor, flat: Flat, layer: str
    ) -> dict[str, tf.Tensor]:
        """As `read`, for a call that nobody told whether it is training.

        A gradient through it is an error: without one, a model whose `call` has no
        argument `training` would fit everything but the table, and say nothing.
        """
        found = self._read(flat)

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

        return self._finish(read(anchor), flat)

    def prefetch(self, flat: Flat, unless_cached: bool) -> None:
        """Starts bringing rows up; see `Table.prefetch`."""
        for group in self.groups:
            keys = _keys_of(group, flat)
            group.table.prefetch(keys.ids, keys.features, unless_cached)

    def _read(self, flat: Flat) -> list[tf.Tensor]:
        if are_frozen():
            return [_read_frozen(group, flat) for group in self.groups]
        with self._one_at_a_time():
            return self._storage.read(self._asked(flat, trains=False))

    def _asked(self, flat: Flat, trains: bool) -> list[Lookup]:
        lookups = []
        for group in self.groups:
            keys = _keys_of(group, flat)
            counts = _sample_counts(group, flat, keys) if trains else None
            step = tf.convert_to_tensor(group.step.value)
            lookups.append(Lookup(group.table, keys.ids, keys.features, step, counts))
        return lookups

    def _finish(self, rows: Sequence[tf.Tensor], flat: Flat) -> dict[str, tf.Tensor]:
        """Returns the outputs of features, of the rows of each table's `_keys_of`."""
        outputs = {}
        for group, of_group in zip(self.groups, rows, strict=True):
            sizes = [tf.size(flat[name].ids) for name in group.inputs]
            parts = tf.split(of_group, sizes) if len(sizes) > 1 else [of_group]
            for name, part in zip(group.inputs, parts, strict=True):
                part.set_shape([None, group.config.dim])
                outputs[name] = flat[name].finish(part)
        return outputs

    def _update(
        self,
        tickets: Sequence[Any],
        upstream: Sequence[tf.Tensor],
        has_gradient: Sequence[bool],
    ) -> None:
        updated, updates = [], []
        for place, group in enumerate(self.groups):
            if has_gradient[place]:
                gradients = tf.convert_to_tensor(upstream[place])
                rate = group.learning_rate()
                updates.append(Update(group.table, tickets[place], gradients, rate))
                updated.append(group)
        with self._one_at_a_time():
            steps = self._storage.update(updates)
            for group, step in zip(updated, steps, strict=True):
                group.step.assign(step)

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        with contextlib.ExitStack() as locks:
            for group in self.groups:
                locks.enter_context(group.one_at_a_time())
            yield


def _keys_of(group: TableGroup, flat: Flat) -> Keys:
    """Returns the keys of all features of the group, one behind the other."""
    return Keys.concat([(flat[name].ids, flat[name].features) for name in group.inputs])


def _read_frozen(group: TableGroup, flat: Flat) -> tf.Tensor:
    keys = _keys_of(group, flat)
    stand_in: Any = frozen(group.table, group.config.name)
    return stand_in.read(keys.ids, keys.features)


def _sample_counts(group: TableGroup, flat: Flat, keys: Keys) -> tf.Tensor | None:
    """Returns counts that add up to the samples of each key, if that is asked for.

    Where no sample can hold a key twice, each occurrence counts anyway.
    """
    parts = [flat[name] for name in group.inputs]
    may_repeat = group.shares_numbers or any(part.may_repeat for part in parts)
    if not (group.counts_samples and may_repeat):
        return None
    samples = [part.samples() for part in parts]
    return sample_counts(keys.ids, keys.features, tf.concat(samples, 0))


def _warn_of_ranks(storage: Storage) -> None:
    """Warns if a launcher has started several processes, which would train apart."""
    ranks = int(os.environ.get("HOROVOD_SIZE", "1"))
    if ranks > 1:
        warnings.warn(
            f"{ranks} ranks were started, and each trains a table of its own: "
            f"{type(storage).__name__} knows its own rank only. To train one model: "
            "storage=tfctr.distributed.ShardedStorage(...) around that storage, and "
            "tfctr.distributed.DistributedOptimizer, not Horovod's own wrapper, which "
            "averages nothing under Keras 3.",
            stacklevel=2,
        )


def _note_gradient(rows: tf.Tensor, has_gradient: list[bool], place: int) -> tf.Tensor:
    """Returns `rows`, whose gradient sets a flag on its way to the lookup.

    TensorFlow asks for the gradient of several outputs at once, and gives zeros for
    those that had no part in the loss. An update by zeros is still one: moments decay.
    """

    @tf.custom_gradient
    def note(rows: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            has_gradient[place] = True
            return upstream

        return tf.identity(rows), gradient

    return note(rows)


def group_lookups(storage: Storage, groups: Sequence[TableGroup]) -> list[TableLookup]:
    """Joins the tables that are looked up in one call.

    Those of one width, where a call is an exchange between ranks. Else each by itself.
    """
    if not storage.spans_ranks:
        _warn_of_ranks(storage)
        return [TableLookup(storage, [group]) for group in groups]
    by_width: dict[int, list[TableGroup]] = {}
    for group in groups:
        by_width.setdefault(group.config.dim, []).append(group)
    return [TableLookup(storage, joined) for joined in by_width.values()]
