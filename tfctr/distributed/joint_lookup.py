"""`JointLookup`: lookups of several tables that travel as one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import tensorflow as tf

from keras_layers.storage.storage import Lookup
from keras_layers.table_group import Keys
from tfctr_ops import KeyRoutes, SentKeys, read_key_messages, route_keys

if TYPE_CHECKING:
    from tfctr.distributed.rank_storage import RankTable


class JointLookup:
    """What this rank asks of tables of one row width, as if they were one table.

    The features of each table come behind those of the one before.

    Args:
        lookups: `Lookup`s of `RankTable`s.
        num_owners: Integer. How many ranks share the keys of a table.
        trains: Boolean. Whether the lookups are for training, which counts keys.
    """

    def __init__(
        self, lookups: Sequence[Lookup], num_owners: int, trains: bool
    ) -> None:
        self._lookups = lookups
        self.tables = [cast("RankTable", asked.table) for asked in lookups]
        self._sends_counts = trains and any(table.wants_counts for table in self.tables)
        self._sizes = [table.num_features for table in self.tables]
        self._firsts = [sum(self._sizes[:i]) for i in range(len(self._sizes))]
        self.routes = self._route(num_owners)

    @property
    def name(self) -> str:
        """What exchanges are called: the same on all ranks."""
        return self.tables[0].name

    @property
    def dim(self) -> int:
        """The row width."""
        return self.tables[0].config.dim

    def rows_of_each(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """Returns the rows `(n, dim)` of each lookup.

        Args:
            rows: float32 `(count, dim)`, of the distinct keys. An absent key has zeros.
        """
        padded = tf.pad(rows, [[1, 0], [0, 0]])
        return [
            tf.ensure_shape(tf.gather(padded, places + 1), [None, self.dim])
            for places in self._split(self.routes.places)
        ]

    def sum_of(self, gradients: Sequence[tf.Tensor | None]) -> tf.Tensor:
        """Returns the gradients of the distinct keys, `(count, dim)`.

        Args:
            gradients: float32 `(n, dim)` of each lookup, or `None` for zeros.
        """
        count = tf.reduce_sum(self.routes.num_keys)
        of_all = [
            tf.zeros([tf.size(asked.ids), self.dim]) if of_one is None else of_one
            for asked, of_one in zip(self._lookups, gradients, strict=True)
        ]
        return tf.math.unsorted_segment_sum(_concat(of_all), self.routes.places, count)

    def tables_of_distinct(self) -> tf.Tensor:
        """Returns of each distinct key which table it is of: int32 `(count,)`."""
        count = tf.reduce_sum(self.routes.num_keys)
        if len(self.tables) == 1:
            return tf.zeros([count], tf.int32)
        of_each = [
            tf.fill([tf.size(asked.ids)], table)
            for table, asked in enumerate(self._lookups)
        ]
        return tf.math.unsorted_segment_max(
            tf.concat(of_each, 0), self.routes.places, count
        )

    def read(self, messages: tf.Tensor, sizes: tf.Tensor) -> "AskedKeys":
        """Returns what messages of `routes`, from all ranks, ask of the own tables."""
        num_features, num_tables = sum(self._sizes), len(self.tables)
        keys = read_key_messages(messages, sizes, num_features, self._sends_counts)
        if num_tables == 1:
            tables = tf.zeros_like(keys.features)
            return AskedKeys([self._own(0, keys)], tables, None, keys.num_keys)
        of_feature = tf.repeat(range(num_tables), self._sizes)
        tables = tf.gather(of_feature, keys.features)
        positions = tf.dynamic_partition(
            tf.range(tf.size(keys.ids)), tables, num_tables
        )
        lookups = [
            self._own(table, _some(keys, places, self._sends_counts))
            for table, places in enumerate(positions)
        ]
        return AskedKeys(lookups, tables, positions, keys.num_keys)

    def _route(self, num_owners: int) -> KeyRoutes:
        keys = Keys.concat(
            [
                # Absent keys stay -1.
                (asked.ids, tf.where(asked.features < 0, -1, asked.features + first))
                for asked, first in zip(self._lookups, self._firsts, strict=True)
            ]
        )
        counts = None
        if any(asked.counts is not None for asked in self._lookups):
            counts = _concat(
                [
                    tf.ones([tf.size(asked.ids)], tf.int32)
                    if asked.counts is None
                    else asked.counts
                    for asked in self._lookups
                ]
            )
        return route_keys(
            keys.ids, keys.features, self._sizes, num_owners, counts, self._sends_counts
        )

    def _split(self, of_keys: tf.Tensor) -> list[tf.Tensor]:
        """Returns the part of each lookup of what all keys have."""
        if len(self._lookups) == 1:
            return [of_keys]
        parts: list[tf.Tensor] = tf.split(
            of_keys, [tf.size(asked.ids) for asked in self._lookups]
        )
        return parts

    def _own(self, place: int, keys: SentKeys) -> Lookup:
        table = self.tables[place]
        return Lookup(
            table.own,
            keys.ids,
            keys.features - self._firsts[place],
            self._lookups[place].expected_step,
            keys.counts if self._sends_counts and table.wants_counts else None,
        )


class AskedKeys(NamedTuple):
    """What all ranks ask of this one.

    Attributes:
        lookups: Of each of the own tables.
        tables: int32 `(n,)`. Which table each key is of, in the order in which they
            came: rank by rank.
        positions: int32 of each table: where its keys stand among all that came. `None`
            if there is only one table.
        num_keys: int32 `(ranks,)`. How many keys each rank asks for.
    """

    lookups: list[Lookup]
    tables: tf.Tensor
    positions: list[tf.Tensor] | None
    num_keys: tf.Tensor

    def join(self, rows: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the rows of all tables, in the order in which their keys came."""
        if self.positions is None:
            return rows[0]
        return tf.dynamic_stitch(self.positions, list(rows))

    def split(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """Returns the rows of each table: the reverse of `join`."""
        if self.positions is None:
            return [rows]
        return [tf.gather(rows, places) for places in self.positions]


def _concat(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _some(keys: SentKeys, places: tf.Tensor, has_counts: bool) -> SentKeys:
    return SentKeys(
        tf.gather(keys.ids, places),
        tf.gather(keys.features, places),
        keys.num_keys,
        tf.gather(keys.counts, places) if has_counts else keys.counts,
    )
