"""`Storage`, a recipe that says where rows live, and `Table`, the live thing."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_layers.table_config import TableConfig
from tfctr_ops import EmbeddingStore, Rows

KeyPairs = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
Counts = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What a table of some size will need.

    Args:
        num_keys: Integer. How many keys the table holds.
        row_bytes: Integer. Bytes of a row: header, weights and optimizer slots.
        ram_bytes: Integer. Bytes of memory, rows and index.
        ssd_bytes: Integer. Bytes on disk, when files are as stale as they get.

    Example:

    >>> adagrad = keras.optimizers.Adagrad(0.01)
    >>> table = TableConfig("ads", dim=16, optimizer=adagrad)
    >>> TieredStorage().forecast(table, num_keys=1_000_000).row_bytes
    152
    """

    num_keys: int
    row_bytes: int
    ram_bytes: int
    ssd_bytes: int


@dataclasses.dataclass(frozen=True)
class SavedTable:
    """A snapshot of a table, and what is wanted of it.

    Args:
        directories: Strings. Those of its parts.
        features: Integers. Feature f of the snapshot becomes `features[f]`.
        seeds: Integers. Those of the table's features from now on.
        owner: Integer. Only keys that belong to it are taken, as
            `tfctr_ops.route_keys` says.
        num_owners: Integer. How many owners there are.
    """

    directories: Sequence[str]
    features: Sequence[int]
    seeds: Sequence[int]
    owner: int = 0
    num_owners: int = 1

    def restore_to(self, store: EmbeddingStore) -> None:
        """Replaces all that `store` has by it."""
        store.restore(
            self.directories, self.features, self.seeds, self.owner, self.num_owners
        )


class Table(abc.ABC):
    """The live rows of one or more features; made by `Storage.open`.

    Keys are given as `ids`, int64 `(n,)`, and `features`, int32 `(p,)` where p divides
    n: key i is `(features[i % p], ids[i])`. Feature -1 stands for an absent key.
    """

    @abc.abstractmethod
    def lookup(
        self,
        ids: tf.Tensor,
        features: tf.Tensor,
        expected_step: tf.Tensor,
        counts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Any]:
        """Returns the weights `(n, dim)` for training, inserting unseen keys.

        Keys that the table's admission refuses are counted, each as often as `counts`,
        int32 `(n,)`, says, or once; they read the default row. The second value is a
        ticket: `update` needs it, and dropping it is fine.
        """

    @abc.abstractmethod
    def update(
        self,
        ticket: Any,
        gradients: tf.Tensor,
        learning_rate: tf.Tensor,
        is_good: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Moves the distinct rows of a lookup by its gradients `(n, dim)`.

        Gradients of equal keys are summed first; several lookups of one step make one
        update. If `is_good`, a bool scalar, is false, they count as bad, whatever they
        are. Returns how many updates the table has seen, an int64 scalar.
        """

    @abc.abstractmethod
    def read(
        self, ids: tf.Tensor, features: tf.Tensor, expected_step: tf.Tensor | int = -1
    ) -> tf.Tensor:
        """Returns the weights `(n, dim)`; never updated keys read the default row."""

    @abc.abstractmethod
    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        """Starts bringing rows up for a lookup to come; changes no result.

        With `unless_cached`, may do nothing while lookups wait for no disk. Returns
        the operation in a graph, else nothing.
        """

    @abc.abstractmethod
    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        """Sets weights, inserting unseen keys; of equal keys, the last wins."""

    @abc.abstractmethod
    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Removes keys and returns how many were ever updated or written."""

    @abc.abstractmethod
    def expire(self) -> int:
        """Removes rows by the table's `Expiry`, and returns how many."""

    @abc.abstractmethod
    def export(self, batch_size: int) -> Iterator[tuple[KeyPairs, Vectors]]:
        """Yields the keys `(n, 2)`, feature and id, and the weights `(n, dim)`.

        Rows that were never updated or written are left out. Slots are not exported.
        """

    @abc.abstractmethod
    def save_rows(self) -> Rows:
        """Returns all rows with their slots and counters, as of one moment."""

    def own_rows(self) -> Rows:
        """As `save_rows`, of the rows that this process has, to be put back by it."""
        return self.save_rows()

    @abc.abstractmethod
    def restore_rows(self, rows: Rows, step: int) -> None:
        """Replaces all rows by those that `save_rows` returned after `step` updates.

        What admission has counted is forgotten.
        """

    @abc.abstractmethod
    def save_admission(self) -> Counts:
        """Returns what admission has counted, as bytes; none without admission."""

    @abc.abstractmethod
    def restore_admission(self, counts: Counts, features: Sequence[int]) -> None:
        """Brings back what `save_admission` returned, which `restore_rows` forgets.

        Its feature f becomes `features[f]`.
        """

    @abc.abstractmethod
    def begin_save(self, directory: str, scratch: str) -> None:
        """Begins a snapshot in a new directory, of the rows of this moment.

        Files that snapshots share stay in `scratch`.
        """

    @abc.abstractmethod
    def finish_save(self, metadata: str) -> dict[str, int]:
        """Writes the snapshot that was begun, while training goes on.

        Returns counts: `rows`, `rows_written`, `bytes`, `linked_bytes`.
        """

    @abc.abstractmethod
    def restore(self, saved: SavedTable) -> None:
        """Replaces all rows, the counts of admission and the step by a snapshot's."""

    @abc.abstractmethod
    def size(self) -> int:
        """Returns how many keys were ever updated or written and are still there."""

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Returns counts of what the table holds and did.

        All are integers but `clipped_share`: of the rows that were updated since the
        table was opened, how many had a gradient that was clipped.
        """


@dataclasses.dataclass(frozen=True)
class Lookup:
    """What a layer asks of one table: the arguments of `Table.lookup`."""

    table: Table
    ids: tf.Tensor
    features: tf.Tensor
    expected_step: tf.Tensor
    counts: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Update:
    """What a layer tells one table: the arguments of `Table.update`."""

    table: Table
    ticket: Any
    gradients: tf.Tensor
    learning_rate: tf.Tensor
    is_good: tf.Tensor | None = None


class Storage(abc.ABC):
    """Says where the rows of tables live. Immutable, and may be shared and copied.

    A layer asks several of the tables that its storage has opened in one call, so that
    a storage may do at once for all what takes long for each.
    """

    # Whether all ranks of a job train the same rows. Tables of one width are then
    # looked up and updated in one call.
    spans_ranks: bool = False

    @abc.abstractmethod
    def open(self, config: TableConfig, feature_seeds: Sequence[int]) -> Table:
        """Makes an empty table.

        Args:
            config: `TableConfig`.
            feature_seeds: One integer per feature.
        """

    def lookup(self, lookups: Sequence[Lookup]) -> list[tuple[tf.Tensor, Any]]:
        """Returns what `Table.lookup` returns, of each."""
        return [
            asked.table.lookup(
                asked.ids, asked.features, asked.expected_step, asked.counts
            )
            for asked in lookups
        ]

    def update(self, updates: Sequence[Update]) -> list[tf.Tensor]:
        """Returns what `Table.update` returns, of each; all are of one `lookup`."""
        return [
            told.table.update(
                told.ticket, told.gradients, told.learning_rate, told.is_good
            )
            for told in updates
        ]

    def read(self, lookups: Sequence[Lookup]) -> list[tf.Tensor]:
        """Returns what `Table.read` returns, of each."""
        return [
            asked.table.read(asked.ids, asked.features, asked.expected_step)
            for asked in lookups
        ]

    @abc.abstractmethod
    def forecast(self, config: TableConfig, num_keys: int) -> Forecast:
        """Returns what a table with `num_keys` keys will need."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns a short word for names and summaries, such as `"ram"`."""
