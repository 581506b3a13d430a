"""`ShardedStorage`: each row of a table on one of the ranks."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_layers import TableConfig
from keras_layers.storage.storage import Forecast, Storage, Table
from keras_layers.table_snapshots import part_name
from tfctr.distributed import engine
from tfctr.distributed.rank_storage import RankStorage, RankTable
from tfctr.distributed.wire import check_wire_dtype, decode, encode
from tfctr_ops import Rows, read_key_messages, route_keys


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
    it owns. `prefetch` brings up only those rows of the own
    batch that this rank owns. An id that comes up on two ranks in one step counts twice
    for admission, and one that comes up twice on one rank, once. `max_rows` of an
    `Expiry` is divided by the number of ranks.

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
        table = ShardedTable(own, config, len(feature_seeds), self._scale)
        table.wire_dtype = self._wire_dtype
        return table

    def forecast(self, config: TableConfig, num_keys: int) -> Forecast:
        """Returns what each rank will need for its share of the keys."""
        return super().forecast(config, -(-num_keys // engine.size()))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "wire_dtype": self._wire_dtype}


class ShardedTicket(NamedTuple):
    """What an update needs to know of its lookup."""

    inner: Any
    places: tf.Tensor  # Of each key among the distinct ones.
    sent: tf.Tensor  # Distinct keys by owner.
    received: tf.Tensor  # Keys by the rank that asks.


class ShardedTable(RankTable):
    """A table whose rows are on all ranks; see `Table` and `ShardedStorage`."""

    wire_dtype: str | None = None
    _gathered: Rows | None = None

    def lookup(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        places, sent, keys = self._ask(ids, features)
        rows, inner = self._own.lookup(keys.ids, keys.features, expected_step)
        ticket: Any = ShardedTicket(inner, places, sent, keys.num_keys)
        return self._answer(rows, ticket), ticket

    def update(
        self, ticket: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Tensor:
        asked = ShardedTicket(*ticket)
        sums = self._sum(gradients, asked.places, tf.reduce_sum(asked.sent))
        if self._config.bad_gradients == "skip":
            sums = self._all_or_none(sums)
        received = self._send(sums, asked.sent, asked.received, "gradients")
        return self._own.update(asked.inner, received, learning_rate)

    def read(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tf.Tensor:
        places, sent, keys = self._ask(ids, features)
        rows = self._own.read(keys.ids, keys.features, expected_step)
        return self._answer(rows, ShardedTicket(None, places, sent, keys.num_keys))

    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        own_ids, own_features = self._own_keys(ids, features)
        return self._own.prefetch(own_ids, own_features, unless_cached)

    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        owned = self._is_own(ids, features)
        self._own.write(
            tf.boolean_mask(ids, owned),
            tf.boolean_mask(_of_each(ids, features), owned),
            tf.boolean_mask(weights, owned),
        )

    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        return self._own.remove(*self._own_keys(ids, features))

    def save_rows(self) -> Rows:
        if self._gathered is not None:
            return self._gathered
        raise ValueError(
            f"Table '{self._config.name}' has its rows on {engine.size()} ranks, and "
            f"Keras saves those of one. Received: a save on rank {engine.rank()}. Save "
            "with tfctr.callbacks.Checkpoint, or on all ranks with "
            "tfctr.distributed.save_model(model, path)."
        )

    def own_rows(self) -> Rows:
        return self._own.save_rows()

    def gather_rows(self) -> None:
        """Brings the rows of all ranks to rank 0, for `save_rows`. Collective.

        Raises:
            ValueError: If the table has an admission, whose counts stay where they are.
        """
        if self._config.admission is not None:
            raise ValueError(
                f"Table '{self._config.name}' has an admission, whose counts are on "
                f"{engine.size()} ranks. Received: a model to be saved in one file. "
                "Save with tfctr.callbacks.Checkpoint, which keeps them."
            )
        rows = self._own.save_rows()
        name = f"{self._name}.saved"
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
        self._own.restore_rows(
            Rows(*(tf.boolean_mask(column, owned) for column in rows)), step
        )

    def begin_save(self, directory: str, scratch: str) -> None:
        part = part_name(engine.rank(), engine.size())
        self._own.begin_save(f"{directory}/{part}", scratch)

    def finish_save(self, metadata: str) -> dict[str, int]:
        return self._own.finish_save(metadata)

    def restore(
        self,
        directories: Sequence[str],
        features: Sequence[int],
        seeds: Sequence[int],
        owner: int = 0,
        num_owners: int = 1,
    ) -> None:
        # The ranks are the owners.
        self._own.restore(directories, features, seeds, engine.rank(), engine.size())

    def _ask(self, ids: tf.Tensor, features: tf.Tensor) -> Any:
        """Sends the distinct keys to their owners, and receives what others ask."""
        routes = self._routes(ids, features)
        messages, sizes = engine.all_to_all(
            routes.messages, routes.sizes, f"{self._name}.keys"
        )
        keys = read_key_messages(messages, sizes, self._num_features)
        return routes.places, routes.sizes - self._num_features, keys

    def _answer(self, rows: tf.Tensor, asked: ShardedTicket) -> tf.Tensor:
        """Sends rows to those who asked, and returns those asked for."""
        received = self._send(rows, asked.received, asked.sent, "rows")
        return self._rows_at(received, asked.places)

    def _send(
        self, rows: tf.Tensor, sizes: tf.Tensor, back: tf.Tensor, what: str
    ) -> tf.Tensor:
        name = f"{self._name}.{what}"
        encoded = encode(rows, self.wire_dtype, f"{name}.scale")
        received, _ = engine.all_to_all(encoded.values, sizes, name)
        received = decode(received, encoded.scales, back)
        return tf.ensure_shape(received, [None, self._config.dim])

    def _all_or_none(self, gradients: tf.Tensor) -> tf.Tensor:
        """Makes all gradients NaN if one is bad on any rank: then all skip the step."""
        # What the store refuses, in whatever sum of the ranks' gradients.
        most = 1e12 / engine.size()
        is_bad = tf.reduce_any(~(tf.abs(gradients) <= most))
        [bad] = engine.all_reduce([tf.cast(is_bad, tf.float32)], f"{self._name}.bad")
        return tf.where(
            bad > 0.0, tf.fill(tf.shape(gradients), float("nan")), gradients
        )

    def _routes(self, ids: tf.Tensor, features: tf.Tensor) -> Any:
        return route_keys(ids, features, self._num_features, engine.size())

    def _own_keys(
        self, ids: tf.Tensor, features: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        routes = self._routes(ids, features)
        rank = engine.rank()
        start = tf.reduce_sum(routes.sizes[:rank])
        size = routes.sizes[rank : rank + 1]
        message = routes.messages[start : start + size[0]]
        keys = read_key_messages(message, size, self._num_features)
        return keys.ids, keys.features

    def _is_own(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Which of the keys belong to this rank; absent ones do not: bool `(n,)`."""
        routes = self._routes(ids, features)
        ends = tf.cumsum(routes.sizes - self._num_features)
        first = ends[engine.rank()] - (routes.sizes[engine.rank()] - self._num_features)
        return (routes.places >= first) & (routes.places < ends[engine.rank()])


def _of_each(ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    """Returns the feature of each id, for features that repeat."""
    return tf.tile(features, [tf.size(ids) // tf.maximum(tf.size(features), 1)])


def _of_one_rank(config: TableConfig) -> TableConfig:
    """The config with the share of one rank of what is counted over all rows."""
    if config.expiry is None or config.expiry.max_rows is None:
        return config
    share = -(-config.expiry.max_rows // engine.size())
    expiry = dataclasses.replace(config.expiry, max_rows=share)
    return dataclasses.replace(config, expiry=expiry)
