"""What `ShardedStorage` and `ReplicatedStorage` have in common."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Self

import keras
import tensorflow as tf

from keras_layers import TableConfig, TieredStorage
from keras_layers.storage.storage import Counts, Forecast, Keys, Storage, Table, Vectors
from tfctr.distributed import engine
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

    @property
    def _scale(self) -> float:
        """What the sum of the ranks' gradients is multiplied by."""
        return 1.0 / engine.size() if self._reduction == "mean" else 1.0

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
        scale: Float, by which the sum of the ranks' gradients is multiplied.
    """

    def __init__(
        self, own: Table, config: TableConfig, num_features: int, scale: float
    ) -> None:
        self._own = own
        self._config = config
        self._num_features = num_features
        self._scale = scale
        # Of exchanges.
        self._name = "table." + re.sub("[^A-Za-z0-9_]", "_", config.name)

    def prefetch(
        self, ids: tf.Tensor, features: tf.Tensor, unless_cached: bool = False
    ) -> Any:
        return self._own.prefetch(ids, features, unless_cached)

    def write(self, ids: tf.Tensor, features: tf.Tensor, weights: tf.Tensor) -> None:
        self._own.write(ids, features, weights)

    def remove(self, ids: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        return self._own.remove(ids, features)

    def expire(self) -> int:
        return self._own.expire()

    def export(self, batch_size: int) -> Iterator[tuple[Keys, Vectors]]:
        return self._own.export(batch_size)

    def save_rows(self) -> Rows:
        return self._own.save_rows()

    def restore_rows(self, rows: Rows, step: int) -> None:
        self._own.restore_rows(rows, step)

    def save_admission(self) -> Counts:
        return self._own.save_admission()

    def restore_admission(self, counts: Counts, features: Sequence[int]) -> None:
        self._own.restore_admission(counts, features)

    def size(self) -> int:
        return self._own.size()

    def stats(self) -> dict[str, int]:
        return self._own.stats()

    def _sum(
        self, gradients: tf.Tensor, places: tf.Tensor, count: tf.Tensor
    ) -> tf.Tensor:
        """Returns the gradients of the distinct keys: float32 `(count, dim)`.

        As one process would have them: a mean over the ranks, if that is asked for.
        """
        return tf.math.unsorted_segment_sum(gradients * self._scale, places, count)

    def _rows_at(self, rows: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Returns the rows at `places`; an absent key, whose place is -1, has zeros."""
        rows = tf.gather(tf.pad(rows, [[1, 0], [0, 0]]), places + 1)
        return tf.ensure_shape(rows, [None, self._config.dim])
