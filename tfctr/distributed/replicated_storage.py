"""`ReplicatedStorage`: all rows of a table on each of the ranks."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_layers import TableConfig
from keras_layers.storage.storage import Lookup, SavedTable, Storage, Table
from tfctr.distributed import engine
from tfctr.distributed.joint_lookup import AskedKeys, JointLookup
from tfctr.distributed.rank_storage import (
    RankStorage,
    RankTable,
    ReceivedGradients,
)


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
        return ReplicatedTable(table, config, len(feature_seeds), self)

    def read(self, lookups: Sequence[Lookup]) -> list[tf.Tensor]:
        if engine.size() == 1:
            return self._inner.read(lookups)
        tables: list[Any] = [asked.table for asked in lookups]
        return self._inner.read(
            [
                dataclasses.replace(asked, table=table.own)
                for asked, table in zip(lookups, tables, strict=True)
            ]
        )

    def _ask(
        self, lookups: Sequence[Lookup], trains: bool
    ) -> tuple[JointLookup, AskedKeys]:
        joint = JointLookup(lookups, num_owners=1, trains=trains)
        messages = engine.all_gather(joint.routes.messages, f"{joint.name}.keys")
        sizes = engine.all_gather(joint.routes.sizes, f"{joint.name}.sizes")
        return joint, joint.read(messages, sizes)

    def _answer(
        self, joint: JointLookup, asked: AskedKeys, rows: tf.Tensor
    ) -> tf.Tensor:
        # Its own are among them.
        first = tf.reduce_sum(asked.num_keys[: engine.rank()])
        return rows[first : first + asked.num_keys[engine.rank()]]

    def _gather_gradients(
        self, joint: JointLookup, asked: AskedKeys, sums: tf.Tensor
    ) -> ReceivedGradients:
        gathered = engine.all_gather(sums, f"{joint.name}.gradients")
        gathered = tf.ensure_shape(gathered, [None, joint.dim])
        # A bad one reaches all ranks.
        return ReceivedGradients(gathered, [None] * len(joint.tables))


class ReplicatedTable(RankTable):
    """A table that is the same on all ranks; see `Table` and `ReplicatedStorage`."""

    def begin_save(self, directory: str, scratch: str) -> None:
        # One of the equal tables will do.
        if engine.is_main():
            self.own.begin_save(directory, scratch)

    def finish_save(self, metadata: str) -> dict[str, int]:
        return self.own.finish_save(metadata) if engine.is_main() else {}

    def restore(self, saved: SavedTable) -> None:
        self.own.restore(saved)
