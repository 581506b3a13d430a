"""`ReplicatedStorage`: all rows of a table on each of the ranks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_layers import TableConfig
from keras_layers.storage.storage import Storage, Table
from tfctr.distributed import engine
from tfctr.distributed.rank_storage import RankStorage, RankTable
from tfctr_ops import read_key_messages, route_keys


@keras.saving.register_keras_serializable(package="tfctr")
class ReplicatedStorage(RankStorage):
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

    def __init__(self, inner: Storage | None = None, reduction: str = "mean") -> None:
        super().__init__(inner, reduction)

    def open(self, config: TableConfig, feature_seeds: Sequence[int]) -> Table:
        table = self._inner.open(config, feature_seeds)
        if engine.size() == 1:
            return table
        return ReplicatedTable(table, config, len(feature_seeds), self._scale)


class ReplicatedTicket(NamedTuple):
    """What an update needs to know of its lookup."""

    inner: Any
    places: tf.Tensor  # Of each key among the distinct ones of this rank.
    count: tf.Tensor  # Of these.


class ReplicatedTable(RankTable):
    """A table that is the same on all ranks; see `Table` and `ReplicatedStorage`."""

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
        ticket: Any = ReplicatedTicket(inner, routes.places, count)
        return self._rows_at(rows[first : first + count], routes.places), ticket

    def update(
        self, ticket: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Tensor:
        asked = ReplicatedTicket(*ticket)
        sums = self._sum(gradients, asked.places, asked.count)
        gathered = engine.all_gather(sums, f"{self._name}.gradients")
        gathered = tf.ensure_shape(gathered, [None, self._config.dim])
        return self._own.update(asked.inner, gathered, learning_rate)

    def read(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tf.Tensor:
        return self._own.read(ids, features, expected_step)

    def begin_save(self, directory: str, scratch: str) -> None:
        # One of the equal tables will do.
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
