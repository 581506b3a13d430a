"""What `ShardedStorage` and `ReplicatedStorage` have in common."""

import abc
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf

from keras_layers import TableConfig, TieredStorage
from keras_layers.storage.storage import (
    Counts,
    Forecast,
    KeyPairs,
    Lookup,
    Storage,
    Table,
    Update,
    Vectors,
)
from tfctr.distributed import engine
from tfctr.distributed.joint_lookup import AskedKeys, JointLookup
from tfctr.distributed.ranks import warn_if_unknown
from tfctr_ops import Rows


class RankStorage(Storage):
    """A storage around the one in which each rank keeps rows.

    Args:
        inner: `Storage` of each rank's rows. `None` means `TieredStorage()`.
        reduction: String. `"mean"` or `"sum"` of the ranks' gradients.

    Raises:
        ValueError: If `reduction` is neither.
    """

    spans_ranks = True

    def __init__(self, inner: Storage | None, reduction: str) -> None:
        if reduction not in ("mean", "sum"):
            raise ValueError(
                "`reduction` must be one of 'mean', 'sum'. "
                f"Received: reduction={reduction!r}."
            )
        self._inner = inner or TieredStorage()
        self._reduction = reduction

    def lookup(self, lookups: Sequence[Lookup]) -> list[tuple[tf.Tensor, Any]]:
        if engine.size() == 1:
            return self._inner.lookup(lookups)
        warn_if_unknown()
        joint, asked = self._ask(lookups, trains=True)
        found = self._inner.lookup(asked.lookups)
        rows = self._answer(joint, asked, asked.join([rows for rows, _ in found]))
        tickets = [
            RankTicket(joint, asked, place, ticket)
            for place, (_, ticket) in enumerate(found)
        ]
        return list(zip(joint.rows_of_each(rows), tickets, strict=True))

    def update(self, updates: Sequence[Update]) -> list[tf.Tensor]:
        if engine.size() == 1:
            return self._inner.update(updates)
        joint, asked, _, _ = updates[0].ticket
        # As one process would have them: a mean over the ranks, if that is asked for.
        scale = 1.0 / engine.size() if self._reduction == "mean" else 1.0
        gradients: list[tf.Tensor | None] = [None] * len(joint.tables)
        for told in updates:
            gradients[told.ticket.place] = told.gradients * scale
        received = self._gather_gradients(joint, asked, joint.sum_of(gradients))
        parts = asked.split(received.gradients)
        return self._inner.update(
            [
                Update(
                    asked.lookups[told.ticket.place].table,
                    told.ticket.inner,
                    parts[told.ticket.place],
                    told.learning_rate,
                    received.are_good[told.ticket.place],
                )
                for told in updates
            ]
        )

    @abc.abstractmethod
    def _ask(
        self, lookups: Sequence[Lookup], trains: bool
    ) -> tuple[JointLookup, AskedKeys]:
        """Tells other ranks what this one asks, and returns what they ask of it."""

    @abc.abstractmethod
    def _answer(
        self, joint: JointLookup, asked: AskedKeys, rows: tf.Tensor
    ) -> tf.Tensor:
        """Exchanges rows of asked keys for those of the own distinct keys."""

    @abc.abstractmethod
    def _gather_gradients(
        self, joint: JointLookup, asked: AskedKeys, sums: tf.Tensor
    ) -> "ReceivedGradients":
        """Exchanges gradients of the own distinct keys for those of asked keys."""

    def forecast(self, config: TableConfig, num_keys: int) -> Forecast:
        """Returns what each rank will need."""
        return self._inner.forecast(config, num_keys)

    def describe(self) -> str:
        return self._inner.describe()

    def get_config(self) -> dict[str, Any]:
        return {"inner": self._inner, "reduction": self._reduction}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        inner = config["inner"]
        if not isinstance(inner, Storage):
            inner = keras.saving.deserialize_keras_object(inner)
        return cls(**{**config, "inner": inner})


class RankTable(Table):
    """A table around the one with the rows of this rank.

    Args:
        own: `Table` of the rows of this rank.
        config: `TableConfig`.
        num_features: Integer.
        storage: `RankStorage` that has opened it.
    """

    def __init__(
        self, own: Table, config: TableConfig, num_features: int, storage: RankStorage
    ) -> None:
        self.own = own
        self.config = config
        self.num_features = num_features
        self._storage = storage
        # Whether it needs to know how often each key counts.
        self.wants_counts = config.admission is not None or config.counts_samples
        # Of exchanges.
        self.name = "table." + re.sub("[^A-Za-z0-9_]", "_", config.name)

    def lookup(
        self,
        ids: tf.Tensor,
        features: tf.Tensor,
        expected_step: tf.Tensor,
        counts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Any]:
        asked = Lookup(self, ids, features, expected_step, counts)
        return self._storage.lookup([asked])[0]

    def update(
        self,
        ticket: Any,
        gradients: tf.Tensor,
        learning_rate: tf.Tensor,
        is_good: tf.Tensor | None = None,
    ) -> tf.Tensor:
        told = Update(self, ticket, gradients, learning_rate, is_good)
        return self._storage.update([told])[0]

    def read(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tf.Tensor:
        step = tf.convert_to_tensor(expected_step, tf.int64)
        return self._storage.read([Lookup(self, ids, features, step)])[0]

    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        return self.own.prefetch(ids, features, unless_cached)

    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        self.own.write(ids, features, weights)

    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        return self.own.remove(ids, features)

    def expire(self) -> int:
        return self.own.expire()

    def export(self, batch_size: int) -> Iterator[tuple[KeyPairs, Vectors]]:
        return self.own.export(batch_size)

    def save_rows(self) -> Rows:
        return self.own.save_rows()

    def restore_rows(self, rows: Rows, step: int) -> None:
        self.own.restore_rows(rows, step)

    def save_admission(self) -> Counts:
        return self.own.save_admission()

    def restore_admission(self, counts: Counts, features: Sequence[int]) -> None:
        self.own.restore_admission(counts, features)

    def size(self) -> int:
        return self.own.size()

    def stats(self) -> dict[str, int]:
        return self.own.stats()


class ReceivedGradients(NamedTuple):
    """What an update is made of.

    Attributes:
        gradients: float32 `(n, dim)`, of the asked keys.
        are_good: Of each table whether its step is good on all ranks: a bool scalar, or
            `None` where its gradients tell.
    """

    gradients: tf.Tensor
    are_good: Sequence[tf.Tensor | None]


class RankTicket(NamedTuple):
    """What an update needs to know of its lookup."""

    joint: JointLookup
    asked: AskedKeys
    place: int  # Of the table in the joint lookup.
    inner: Any
