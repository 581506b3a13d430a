"""`ShardedStorage`: each row of a table on one of the ranks."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_layers import TableConfig
from keras_layers.storage.storage import Forecast, Lookup, SavedTable, Storage, Table
from keras_layers.table_snapshots import part_name
from tfctr.distributed import engine
from tfctr.distributed.joint_lookup import AskedKeys, JointLookup
from tfctr.distributed.rank_storage import (
    RankStorage,
    RankTable,
    ReceivedGradients,
)
from tfctr.distributed.wire import WireRows, check_wire_dtype, decode, encode
from tfctr_ops import Rows, route_keys
from tfctr_ops.sparse_optimizer import GRADIENT_BOUND


@keras.saving.register_keras_serializable(package="tfctr")
class ShardedStorage(RankStorage):
    """Spreads the rows of tables over all ranks: each is on the rank that owns its key.

    With one rank it is the inner storage and nothing more. With several, each looks its
    keys up where they are and sends the gradients there, every distinct key of a batch
    once; the owner makes one update of the gradients of all ranks. A table has as many
    rows in all as it would have on one rank, and the same ones.

    Lookups, in training and outside, are collective: all ranks must call the layer in
    the same order, each with a batch of its own, which may be empty.

    What each rank takes for itself: the arguments of the inner storage, such as `ram`
    and `ssd_limit`, hold for each rank. What changes rows by hand (`write_rows`,
    `expire`, `load_weights`) is done on all ranks alike, and each takes the keys that
    it owns. `prefetch` brings up only those rows of the own batch that this rank owns.
    `max_rows` of an `Expiry` is divided by the number of ranks.

    Args:
        inner: `Storage` of each rank's rows. `None` means `TieredStorage()`.
        reduction: String. `"mean"`: rows move by the mean of the ranks' gradients, as
            the weights of a `DistributedOptimizer` do, so that the ranks' mean losses
            make the mean over the global batch. `"sum"`: by their sum.
        wire_dtype: String. `"float16"` or `"bfloat16"`: rows and gradients are rounded
            to so many bits while they travel. `None` sends them as they are.

    Raises:
        ValueError: If an option is none of these.

    Example:

    >>> storage = ShardedStorage(TieredStorage(ram="4GB"))
    >>> storage.describe()
    'ram'
    """

    def __init__(
        self,
        inner: Storage | None = None,
        reduction: str = "mean",
        wire_dtype: str | None = None,
    ) -> None:
        super().__init__(inner, reduction)
        check_wire_dtype(wire_dtype)
        self._wire_dtype = wire_dtype

    def open(self, config: TableConfig, feature_seeds: Sequence[int]) -> Table:
        if engine.size() == 1:
            return self._inner.open(config, feature_seeds)
        own = self._inner.open(_of_one_rank(config), feature_seeds)
        return ShardedTable(own, config, len(feature_seeds), self)

    def read(self, lookups: Sequence[Lookup]) -> list[tf.Tensor]:
        if engine.size() == 1:
            return self._inner.read(lookups)
        joint, asked = self._ask(lookups, trains=False)
        found = asked.join(self._inner.read(asked.lookups))
        return joint.rows_of_each(self._answer(joint, asked, found))

    def forecast(self, config: TableConfig, num_keys: int) -> Forecast:
        """Returns what each rank will need for its share of the keys."""
        return super().forecast(config, -(-num_keys // engine.size()))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "wire_dtype": self._wire_dtype}

    def _ask(
        self, lookups: Sequence[Lookup], trains: bool
    ) -> tuple[JointLookup, AskedKeys]:
        joint = JointLookup(lookups, engine.size(), trains)
        messages, sizes = engine.all_to_all(
            joint.routes.messages, joint.routes.sizes, f"{joint.name}.keys"
        )
        return joint, joint.read(messages, sizes)

    def _answer(
        self, joint: JointLookup, asked: AskedKeys, rows: tf.Tensor
    ) -> tf.Tensor:
        asks, answers = _distinct_of(joint), _asked_of(asked)
        return self._send(rows, answers, asks, joint, "rows")

    def _gather_gradients(
        self, joint: JointLookup, asked: AskedKeys, sums: tf.Tensor
    ) -> ReceivedGradients:
        sums, are_good = _all_or_none(joint, sums)
        asks, answers = _distinct_of(joint), _asked_of(asked)
        received = self._send(sums, asks, answers, joint, "gradients")
        return ReceivedGradients(received, are_good)

    def _send(
        self,
        rows: tf.Tensor,
        sent: WireRows,
        received: WireRows,
        joint: JointLookup,
        what: str,
    ) -> tf.Tensor:
        """Sends rows to their ranks, and returns those that come back."""
        name = f"{joint.name}.{what}"
        encoded = encode(rows, sent, len(joint.tables), self._wire_dtype, name)
        values, _ = engine.all_to_all(encoded.values, sent.sizes, name)
        rows = decode(values, encoded.scales, received)
        return tf.ensure_shape(rows, [None, joint.dim])


class ShardedTable(RankTable):
    """A table whose rows are on all ranks; see `Table` and `ShardedStorage`."""

    _gathered: Rows | None = None

    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        owned = self._is_own(ids, features)
        return self.own.prefetch(*_some(ids, features, owned), unless_cached)

    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        owned = self._is_own(ids, features)
        self.own.write(*_some(ids, features, owned), tf.boolean_mask(weights, owned))

    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        owned = self._is_own(ids, features)
        return self.own.remove(*_some(ids, features, owned))

    def save_rows(self) -> Rows:
        if self._gathered is not None:
            return self._gathered
        raise ValueError(
            f"Table '{self.config.name}' has its rows on {engine.size()} ranks, and "
            f"Keras saves those of one. Received: a save on rank {engine.rank()}. Save "
            "with tfctr.callbacks.Checkpoint, or on all ranks with "
            "tfctr.distributed.save_model(model, path)."
        )

    def own_rows(self) -> Rows:
        return self.own.save_rows()

    def gather_rows(self) -> None:
        """Brings the rows of all ranks to rank 0, for `save_rows`. Collective.

        Raises:
            ValueError: If the table has an admission, whose counts stay where they are.
        """
        if self.config.admission is not None:
            raise ValueError(
                f"Table '{self.config.name}' has an admission, whose counts are on "
                f"{engine.size()} ranks. Received: a model to be saved in one file. "
                "Save with tfctr.callbacks.Checkpoint, which keeps them."
            )
        rows = self.own.save_rows()
        name = f"{self.name}.saved"
        # All to rank 0: the others have no use for them.
        count = tf.shape(rows.ids)[0]
        sizes = tf.concat([[count], tf.zeros(engine.size() - 1, tf.int32)], 0)
        columns = [
            engine.all_to_all(column, sizes, f"{name}.{field}")[0]
            for field, column in zip(Rows._fields, rows, strict=True)
        ]
        self._gathered = Rows(*columns)

    def forget_gathered(self) -> None:
        """Gives back the memory of `gather_rows`."""
        self._gathered = None

    def restore_rows(self, rows: Rows, step: int) -> None:
        owned = self._is_own(rows.ids, rows.features)
        self.own.restore_rows(
            Rows(*(tf.boolean_mask(column, owned) for column in rows)), step
        )

    def begin_save(self, directory: str, scratch: str) -> None:
        part = part_name(engine.rank(), engine.size())
        self.own.begin_save(f"{directory}/{part}", scratch)

    def finish_save(self, metadata: str) -> dict[str, int]:
        return self.own.finish_save(metadata)

    def restore(self, saved: SavedTable) -> None:
        # The ranks are the owners. Where as many have saved, and features had the same
        # numbers, the own part holds the own rows and no others.
        parts, in_order = saved.directories, list(range(len(saved.features)))
        if len(parts) == engine.size() and list(saved.features) == in_order:
            own = dataclasses.replace(saved, directories=[parts[engine.rank()]])
        else:
            own = dataclasses.replace(
                saved, owner=engine.rank(), num_owners=engine.size()
            )
        self.own.restore(own)

    def _is_own(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Which of the keys belong to this rank; absent ones do not: bool `(n,)`."""
        routes = route_keys(ids, features, self.num_features, engine.size())
        ends = tf.cumsum(routes.num_keys)
        rank = engine.rank()
        first = ends[rank] - routes.num_keys[rank]
        return (routes.places >= first) & (routes.places < ends[rank])


def _distinct_of(joint: JointLookup) -> WireRows:
    """The rows that this rank asks for."""
    return WireRows(joint.routes.num_keys, joint.tables_of_distinct)


def _asked_of(asked: AskedKeys) -> WireRows:
    """The rows that this rank is asked for."""
    return WireRows(asked.num_keys, lambda: asked.tables)


def _all_or_none(
    joint: JointLookup, gradients: tf.Tensor
) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
    """Tells all ranks of a bad gradient of a table that skips such steps.

    An owner that is sent nothing bad, or nothing at all, must skip the step too.
    Returns the gradients, zeros where the step is skipped, and of each table whether
    its step is good. Of a table that does not skip, a bad one fails the step anyway.
    """
    skips = [table.config.bad_gradients == "skip" for table in joint.tables]
    if not any(skips):
        return gradients, [None] * len(skips)
    # What the store refuses, in whatever sum of the ranks' gradients.
    most = GRADIENT_BOUND / engine.size()
    is_bad = tf.reduce_any(~(tf.abs(gradients) <= most), axis=1)
    tables = joint.tables_of_distinct()
    bad = tf.math.unsorted_segment_sum(tf.cast(is_bad, tf.float32), tables, len(skips))
    [bad] = engine.all_reduce([bad], f"{joint.name}.bad")
    is_skipped = (bad > 0.0) & tf.constant(skips)
    gradients = tf.where(tf.gather(is_skipped, tables)[:, None], 0.0, gradients)
    return gradients, [
        ~is_skipped[place] if skip else None for place, skip in enumerate(skips)
    ]


def _some(
    ids: tf.Tensor, features: tf.Tensor, wanted: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the wanted of the keys, each with its feature."""
    of_each = tf.tile(features, [tf.size(ids) // tf.maximum(tf.size(features), 1)])
    return tf.boolean_mask(ids, wanted), tf.boolean_mask(of_each, wanted)


def _of_one_rank(config: TableConfig) -> TableConfig:
    """The config with the share of one rank of what is counted over all rows."""
    if config.expiry is None or config.expiry.max_rows is None:
        return config
    share = -(-config.expiry.max_rows // engine.size())
    expiry = dataclasses.replace(config.expiry, max_rows=share)
    return dataclasses.replace(config, expiry=expiry)
