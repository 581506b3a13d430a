"""`HybridTable`: the live table of a `HybridStorage`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_layers.storage.storage import SavedTable
from keras_layers.storage.tfra.hybrid_rows import HybridRows
from keras_layers.storage.tfra.tfra_table import TfraTable
from keras_layers.storage.tfra.trained_rows import TrainedRows
from keras_layers.table_config import TableConfig
from tfctr_ops import Rows


class TieredRows(TrainedRows):
    """`TrainedRows` of two tiers: what concerns all rows is done in the cold one.

    Args:
        config: `TableConfig`.
        feature_seeds: Integers of 64 bits, one per feature.
        rows: `HybridRows`, empty.
        device: String. Where rows are computed.
    """

    def __init__(
        self,
        config: TableConfig,
        feature_seeds: Sequence[int],
        rows: HybridRows,
        device: str,
    ) -> None:
        super().__init__(config, feature_seeds, rows, device)
        self.tiers = rows

    def expire(self, step: tf.Tensor) -> tf.Tensor:
        copied = self.tiers.copy_down(step)
        with tf.control_dependencies([] if copied is None else [copied]):
            removed = self.tiers.cold.expire()
        with tf.control_dependencies([removed]):
            self.tiers.forget_hot()
        self._balance.assign_sub(removed)
        self._expired.assign_add(removed)
        return removed

    def replace(self, rows: Rows, step: int, seeds: Sequence[int] = ()) -> None:
        self.tiers.cold.import_rows(rows, step)
        self.start_cold(seeds)

    def start_cold(self, seeds: Sequence[int]) -> None:
        """Goes on with the rows that the cold tier has now, and these seeds, if any."""
        self._set_seeds(seeds)
        self.tiers.forget_hot()
        self._balance.assign(self.tiers.cold.stats()["known_rows"])

    def size(self) -> int:
        # To count the rows would bring the cold tier up to date.
        return int(self._balance)


class HybridTable(TfraTable):
    """A table in two tiers; see `TfraTable`.

    Args:
        config: `TableConfig`.
        rows: `TieredRows`, empty.
        row_bytes: Integer. What a row takes in the hot tier.
    """

    def __init__(self, config: TableConfig, rows: TieredRows, row_bytes: int) -> None:
        super().__init__(config, rows, row_bytes)
        self._tiers = rows.tiers
        self._both = rows

    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        return self._tiers.cold.prefetch(ids, features, unless_cached)

    def begin_save(self, directory: str, scratch: str) -> None:
        self.flush()
        self._tiers.copy_down(self._ledger.stats()["step"])
        self._tiers.cold.begin_save(directory, scratch)

    def finish_save(self, metadata: str) -> dict[str, int]:
        return self._tiers.cold.finish_save(metadata)

    def restore(self, saved: SavedTable) -> None:
        cold = self._tiers.cold
        cold.restore(
            saved.directories,
            saved.features,
            saved.seeds,
            saved.owner,
            saved.num_owners,
        )
        self._ledger.set_step(cold.stats()["step"])
        self._both.start_cold(saved.seeds)
        self._forget_lookups()

    def stats(self) -> dict[str, int]:
        """Returns the counts of the cold tier, with what is hot besides.

        `rows` and `memory_bytes` are of both tiers, a row in both counting twice;
        `known_rows` are all; `hot_rows` in the hot tier; `demoted_rows` have left it.
        """
        of_both = super().stats()
        cold, hot = self._tiers.cold.stats(), self._tiers.stats()
        hot_bytes = hot["hot_rows"] * of_both["row_bytes"]
        kept = ("step", "skipped_updates", "known_rows", "expired_rows")
        return {
            **cold,
            **{name: of_both[name] for name in kept},
            **hot,
            "rows": cold["rows"] + hot["hot_rows"],
            "memory_bytes": cold["memory_bytes"] + hot_bytes,
        }
