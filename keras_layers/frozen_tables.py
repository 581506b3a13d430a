"""Reads tables from elsewhere while a graph is made, as an export does."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Protocol

import tensorflow as tf

from keras_layers.storage.storage import Table


class FrozenTable(Protocol):
    """What stands in for a table whose rows change no more."""

    def read(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Returns the weights `(n, dim)`, as `Table.read` does."""


_active: contextvars.ContextVar[Mapping[Table, FrozenTable] | None] = (
    contextvars.ContextVar("tfctr_frozen_tables", default=None)
)


@contextlib.contextmanager
def frozen_tables(tables: Mapping[Table, FrozenTable]) -> Iterator[None]:
    """Within it, every `DynamicEmbedding` reads `tables`, and none is trained.

    Args:
        tables: What stands in for each live table. A lookup in another one is an error.
    """
    token = _active.set(tables)
    try:
        yield
    finally:
        _active.reset(token)


def are_frozen() -> bool:
    """Returns whether this is within `frozen_tables`."""
    return _active.get() is not None


def frozen(table: Table, name: str) -> FrozenTable | None:
    """Returns what stands in for a table, or `None` if it is read itself.

    Raises:
        ValueError: If tables are frozen, but not this one.
    """
    tables = _active.get()
    if tables is None:
        return None
    if table not in tables:
        raise ValueError(
            "A model is exported with the tables of the layers that it tracks. "
            f"Received: a lookup in table '{name}' of another layer. Make the layer an "
            "attribute of the model, or of one of its layers."
        )
    return tables[table]
