"""`ServedTable`: the rows of a table in an embedding store that serves a model."""

import contextlib
import dataclasses
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_layers.storage.storage import KeyPairs, Vectors
from keras_layers.table_group import TableGroup
from tfctr.distributed.saving import gather_counts, gather_vectors
from tfctr_ops import EmbeddingStore, RowInitializer, Rows, SparseOptimizer, StoreConfig
from tfctr_ops.library import load

# What the functions of an export call, besides TensorFlow's own.
SERVED_OPS = ("Tfctr>EmbeddingStoreRead",)
_ASSETS, _TABLES = "assets", "tfctr_tables"


@dataclasses.dataclass(frozen=True)
class ServedRows:
    """The rows of a table, without the optimizer's slots.

    Args:
        config: `StoreConfig` of rows without slots.
        keys: int64 `(n, 2)`, feature and id, all distinct.
        vectors: float32 `(n, dim)`.
        counts: int64 `(n,)`. How many updates each has seen; those with the most are
            kept in memory.
    """

    config: StoreConfig
    keys: KeyPairs
    vectors: Vectors
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, name: str, group: TableGroup, counts_updates: bool) -> "ServedRows":
        """Takes the rows out of a live table. Collective.

        Args:
            name: String. For messages.
            group: `TableGroup`, open.
            counts_updates: Boolean. Whether the counts are needed: the rows pass
                through memory with their slots then.
        """
        dim = group.config.dim
        config = StoreConfig(
            table=name,
            dim=dim,
            optimizer=SparseOptimizer("sgd"),
            initializer=RowInitializer("constant"),
            feature_seeds=(0,) * len(group.seeds),
            default_row=group.config.default_row or (0.0,) * dim,
        )
        keys, vectors = gather_vectors(group.table, dim)
        # The same rows in any order make the same files.
        order = _order(keys)
        counts = np.zeros(len(keys), np.int64)
        if counts_updates:
            counted, found = gather_counts(group.table)
            counts = found[_order(counted)]
        return cls(config, keys[order], vectors[order], counts)

    @property
    def bytes(self) -> int:
        """What they take in memory."""
        return len(self.keys) * self.config.row_bytes


class ServedTable(tf.saved_model.experimental.TrackableResource):
    """A store that is made, and filled from a snapshot, where the SavedModel is loaded.

    Args:
        rows: `ServedRows`.
        number: Integer. Of the table in the export.
        ram_bytes: Integer. How many bytes of rows stay in memory. `None` means all.
        ssd: String. Directory for the others. `None`: the system's temporary one.
    """

    variables: tuple[tf.Variable, ...] = ()

    def __init__(
        self, rows: ServedRows, number: int, ram_bytes: int | None, ssd: str | None
    ) -> None:
        super().__init__()
        self.label = rows.config.table
        # Where the snapshots are; set while this is saved.
        self.index: Any = None
        self._rows = rows
        self._number = number
        self._ram_bytes = ram_bytes
        self._ssd = ssd
        self._ops = load()
        with tf.init_scope():
            _ = self.resource_handle

    @property
    def num_rows(self) -> int:
        """How many keys have a row."""
        return len(self._rows.keys)

    def read(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Returns rows, float32 `(n, dim)`; see `keras_layers.storage.Table.read`.

        Args:
            ids: int64 `(n,)`.
            features: int32 `(p,)` where p divides n. -1 is an absent key, of zeros.
        """
        step = tf.constant(-1, tf.int64)
        dim = self._rows.config.dim
        return self._ops.tfctr_embedding_store_read(
            self.resource_handle, ids, features, step, dim=dim
        )

    def write(self, draft: pathlib.Path) -> None:
        """Writes the snapshot that the store is filled from, into an export."""
        rows = self._rows
        directory = draft / _ASSETS / _TABLES / str(self._number)
        directory.parent.mkdir(parents=True, exist_ok=True)
        zeros = np.zeros(len(rows.keys), np.int64)
        features = rows.keys[:, 0].astype(np.int32)
        columns = (rows.keys[:, 1], features, rows.vectors, zeros, rows.counts)
        store = EmbeddingStore(rows.config)
        store.import_rows(Rows(*map(tf.convert_to_tensor, columns)), step=0)
        with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
            store.begin_save(str(directory), scratch)
            store.finish_save()
            # Its files in there go with it.
            del store

    def _create_resource(self) -> tf.Tensor:
        config = self._rows.config
        tiers: dict[str, Any] = {}
        if not tf.executing_eagerly() and self._ram_bytes is not None:
            # Where the export is made nothing is read, and that disk may not be there.
            tiers = {"ram_bytes": self._ram_bytes, "ssd_directory": self._ssd or ""}
        return self._ops.tfctr_served_embedding_store(
            shared_name=f"{_TABLES}/{self._number}",
            table=config.table,
            dim=config.dim,
            num_features=len(config.feature_seeds),
            default_row=config.default_row,
            **tiers,
        )

    def _initialize(self) -> None:
        directory = tf.strings.regex_replace(
            self.index.asset_path, "[^/]*$", f"{_TABLES}/{self._number}"
        )
        num_features = len(self._rows.config.feature_seeds)
        self._ops.tfctr_embedding_store_restore(
            self.resource_handle,
            [directory],
            tf.range(num_features),
            tf.zeros([0], tf.int64),
        )

    def _destroy_resource(self) -> None:
        tf.raw_ops.DestroyResourceOp(
            resource=self.resource_handle, ignore_lookup_error=True
        )


def served_tables(
    groups: Mapping[str, TableGroup], ram_bytes: int | None, ssd: str | None
) -> list[ServedTable]:
    """Returns what stands in for the tables of a model. Collective.

    Args:
        groups: `TableGroup`s by name.
        ram_bytes: Integer. What the rows of all take in memory, of which each table has
            its part: they are in proportion to its rows. `None` means no limit.
        ssd: String. See `ServedTable`.
    """
    limited = ram_bytes is not None
    rows = [ServedRows.of(name, group, limited) for name, group in groups.items()]
    total = max(sum(each.bytes for each in rows), 1)
    return [
        ServedTable(
            each, n, None if ram_bytes is None else ram_bytes * each.bytes // total, ssd
        )
        for n, each in enumerate(rows)
    ]


@contextlib.contextmanager
def located(tables: Sequence[ServedTable], module: tf.Module) -> Iterator[None]:
    """Lets a module be saved: snapshots are found beside an asset of it.

    TensorFlow tells a SavedModel the paths of its assets where it is loaded, and of
    nothing else.
    """
    if not tables:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"{_TABLES}.json")
        names = {str(n): table.label for n, table in enumerate(tables)}
        pathlib.Path(path).write_text(json.dumps(names, indent=1) + "\n")
        asset = tf.saved_model.Asset(path)
        for table in tables:
            table.index = asset
        # A resource cannot have assets of its own.
        module.index = asset
        yield


def _order(keys: KeyPairs) -> npt.NDArray[np.int64]:
    order: npt.NDArray[np.int64] = np.lexsort((keys[:, 1], keys[:, 0]))
    return order
