"""`ReplicatedStorage`: all rows of a table on each of the ranks."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_layers import TableConfig, TieredStorage
from keras_layers.storage.storage import (
    Counts,
    Forecast,
    Keys,
    Storage,
    Table,
    Vectors,
)
from tfctr.distributed import engine
from tfctr_ops import Rows, read_key_messages, route_keys


@keras.saving.register_keras_serializable(package="tfctr")
class ReplicatedStorage(Storage):
    """Keeps all rows of tables on every rank, and keeps them equal to the bit.

    For small tables: predictions need no other rank, and in training the distinct keys
    of all ranks and their gradients go to all ranks, which make the same update.

    With one rank it is the inner storage and nothing more. Training is collective: all
    ranks must call the layer in the same order. What changes rows by hand
    (`write_rows`, `expire`, `load_weights`) must be done on all ranks alike.

    Args:
        inner: `Storage` of the rows of each rank. `None` means `TieredStorage()`.
        reduction: String. `"mean"` or `"sum"`, as for `ShardedStorage`.

    Raises:
        ValueError: If an option is none of these.

    Example:

    >>> ReplicatedStorage().describe()
    'ram'
    """

    spans_ranks = True

    def __init__(self, inner: Storage | None = None, reduction: str = "mean") -> None:
        if reduction not in ("mean", "sum"):
            raise ValueError(
                "`reduction` must be one of 'mean', 'sum'. "
                f"Received: reduction={reduction!r}."
            )
        self._inner = inner or TieredStorage()
        self._reduction = reduction

    def open(self, config: TableConfig, feature_seeds: Sequence[int]) -> Table:
        table = self._inner.open(config, feature_seeds)
        if engine.size() == 1:
            return table
        scale = 1.0 / engine.size() if self._reduction == "mean" else 1.0
        return ReplicatedTable(table, config, len(feature_seeds), scale)

    def forecast(self, config: TableConfig, num_keys: int) -> Forecast:
        """Returns what each rank will need."""
        return self._inner.forecast(config, num_keys)

    def describe(self) -> str:
        return self._inner.describe()

    def get_config(self) -> dict[str, Any]:
        return {"inner": self._inner, "reduction": self._reduction}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ReplicatedStorage":
        inner = config["inner"]
        if not isinstance(inner, Storage):
            inner = keras.saving.deserialize_keras_object(inner)
        return cls(**{**config, "inner": inner})


class ReplicatedTicket(NamedTuple):
    """What an update needs to know of its lookup."""

    inner: Any
    places: tf.Tensor  # Of each key among the distinct ones of this rank.
    count: tf.Tensor  # Of these.


class ReplicatedTable(Table):
    """A table that is the same on all ranks; see `Table` and `ReplicatedStorage`.

    Args:
        own: `Table` of this rank.
        config: `TableConfig`.
        num_features: Integer.
        scale: Float, by which the sum of the ranks' gradients is multiplied.
    """

    def __init__(
        self, own: Table, config: TableConfig, num_features: int, scale: float
    ) -> None:
        self._own = own
        self._config = config
        self._num_features = num_features
        self._scale = scale
        self._name = "table." + re.sub(r"\W", "_", config.name)

    def lookup(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        routes = route_keys(ids, features, self._num_features, num_owners=1)
        messages = engine.all_gather(routes.messages, f"{self._name}.keys")
        sizes = engine.all_gather(routes.sizes, f"{self._name}.sizes")
        keys = read_key_messages(messages, sizes, self._num_features)
        rows, inner = self._own.lookup(keys.ids, keys.features, expected_step)
        # Its own are among them.
        first = tf.reduce_sum(keys.num_keys[: engine.rank()])
        count = keys.num_keys[engine.rank()]
        rows = tf.pad(rows[first : first + count], [[1, 0], [0, 0]])
        ticket: Any = ReplicatedTicket(inner, routes.places, count)
        # An absent key, whose place is -1, reads zeros.
        return tf.gather(rows, routes.places + 1), ticket

    def update(
        self, ticket: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Tensor:
        asked = ReplicatedTicket(*ticket)
        sums = tf.math.unsorted_segment_sum(
            gradients * self._scale, asked.places, asked.count
        )
        gathered = engine.all_gather(sums, f"{self._name}.gradients")
        gathered = tf.ensure_shape(gathered, [None, self._config.dim])
        return self._own.update(asked.inner, gathered, learning_rate)

    def read(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tf.Tensor:
        return self._own.read(ids, features, expected_step)

    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        return self._own.prefetch(ids, features, unless_cached)

    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        self._own.write(ids, features, weights)

    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        return self._own.remove(ids, features)

    def expire(self) -> int:
        return self._own.expire()

    def export(self, batch_size: int) -> Iterator[tuple[Keys, Vectors]]:
        return self._own.export(batch_size)

    def save_rows(self) -> Rows:
        return self._own.save_rows()

    def restore_rows(self, rows: Rows, step: int) -> None:
        self._own.restore_rows(rows, step)

    def save_admission(self) -> Counts:
        return self._own.save_admission()

    def restore_admission(self, counts: Counts, features: Sequence[int]) -> None:
        self._own.restore_admission(counts, features)

    def begin_save(self, directory: str, scratch: str) -> None:
        if engine.is_main():
            self._own.begin_save(directory, scratch)

    def finish_save(self, metadata: str) -> dict[str, int]:
        return self._own.finish_save(metadata) if engine.is_main() else {}

    def restore(
        self,
        directories: Sequence[str],
        features: Sequence[int],
        seeds: Sequence[int],
        owner: int = 0,
        num_owners: int = 1,
    ) -> None:
        self._own.restore(directories, features, seeds)

    def size(self) -> int:
        return self._own.size()

    def stats(self) -> dict[str, int]:
        return self._own.stats()
