"""`HybridTable`: the live table of a `HybridStorage`."""

from typing import Any

import tensorflow as tf

from keras_layers.storage.storage import SavedTable
from keras_layers.storage.tfra.hybrid_rows import HybridRows
from keras_layers.storage.tfra.tfra_table import TfraTable
from keras_layers.storage.tfra.trained_rows import TrainedRows
from keras_layers.table_config import TableConfig


class HybridTable(TfraTable):
    """A table in two tiers: a step is as in one, but snapshots are of the cold tier.

    Args:
        config: `TableConfig`.
        rows: `TrainedRows`, empty.
        tiers: `HybridRows` of them.
        row_bytes: Integer. What a row takes in the hot tier.
    """

    def __init__(
        self, config: TableConfig, rows: TrainedRows, tiers: HybridRows, row_bytes: int
    ) -> None:
        super().__init__(config, rows, row_bytes)
        self._tiers = tiers

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
        saved.restore_to(cold)
        stats = cold.stats()
        self._ledger.set_step(stats["step"])
        self._tiers.forget_hot()
        self._rows.were_replaced(stats["known_rows"], saved.seeds)
        self._forget_lookups()

    def stats(self) -> dict[str, Any]:
        """Returns the counts of the cold tier, with what is hot besides.

        `rows` and `memory_bytes` are of both tiers, a row in both counting twice;
        `known_rows` are all; `hot_rows` in the hot tier; `demoted_rows` have left it.
        """
        of_both, cold = super().stats(), self._tiers.cold.stats()
        hot_rows = of_both["hot_rows"]
        kept = (
            "step",
            "skipped_updates",
            "known_rows",
            "expired_rows",
            "demoted_rows",
            "updated_rows",
            "clipped_rows",
            "clipped_share",
        )
        return {
            **cold,
            **{name: of_both[name] for name in kept},
            "hot_rows": hot_rows,
            "rows": cold["rows"] + hot_rows,
            "memory_bytes": cold["memory_bytes"] + hot_rows * of_both["row_bytes"],
        }
