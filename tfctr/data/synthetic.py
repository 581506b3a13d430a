"""`SyntheticClickLog`: a click log that is generated, with known probabilities."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfctr.data.click_log import check_split
from tfctr.data.hashing import Integers, UInt64s, hash64, mix64, to_unit
from tfctr.data.indexed_click_log import IndexedClickLog
from tfctr.data.number_checks import is_integer
from tfctr.data.teacher import Teacher
from tfctr.feature import Feature

if TYPE_CHECKING:
    import tensorflow as tf

    from tfctr.data.indexed_click_log import Batch

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]

ZIPF_EXPONENT = 1.05
_MAX_IDS_PER_FIELD = 2**40  # Beyond, float64 would blur neighbouring ranks.
_CALIBRATION_EXAMPLES = 16_384
_CHUNK = 8_192  # Examples whose intermediate arrays fit a CPU cache.


class SyntheticClickLog(IndexedClickLog):
    """Generates clicks whose true probabilities are known.

    The ids of a field follow a bounded Zipf law with exponent 1.05. They are scattered
    over all of int64, without collisions between fields, so that nothing mistakes them
    for row numbers. A `Teacher` (linear terms plus a factorization machine) knows each
    example's click probability; the label is drawn from it. About a quarter of the
    labels are clicks, and the best reachable AUC, that of `probabilities` against
    `labels`, is about 0.87.

    One example in ten is in the test split. Everything is a pure function of the
    arguments, and each split begins with the examples of a shorter log's split. The log
    is generated at construction and held in memory: 8 bytes per id, 4 per dense number
    and 12 per example.

    Args:
        num_examples: Integer, at least 10. Examples in both splits together.
        fields: Integer. Number of columns of the feature "ids".
        ids_per_field: Integer from 2 to 2**40. Distinct ids that a field may have.
        dim: Integer. Width of the teacher's factorization machine.
        num_dense: Integer. Columns of the float32 feature "dense", uniform in [0, 1).
            With 0 there is no such feature.
        seed: Integer. Seeds everything.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> log = SyntheticClickLog(num_examples=1000, fields=3, num_dense=2)
    >>> inputs, labels = next(iter(log.batches("train", batch_size=32)))
    >>> inputs["ids"].shape, inputs["dense"].shape, labels.shape
    (TensorShape([32, 3]), TensorShape([32, 2]), TensorShape([32]))
    """

    def __init__(
        self,
        num_examples: int = 1_000_000,
        fields: int = 8,
        ids_per_field: int = 20_000,
        dim: int = 4,
        num_dense: int = 0,
        seed: int = 0,
    ) -> None:
        _check_range("num_examples", num_examples, 10)
        _check_range("fields", fields, 1)
        _check_range("ids_per_field", ids_per_field, 2, _MAX_IDS_PER_FIELD)
        _check_range("dim", dim, 1)
        _check_range("num_dense", num_dense, 0)
        _check_range("seed", seed, 0, 2**63 - 1)
        self.fields = fields
        self.ids_per_field = ids_per_field
        self.num_dense = num_dense
        self.seed = seed
        self.features = (Feature("ids", "int64", width=fields),)
        if num_dense:
            self.features += (Feature("dense", "float32", width=num_dense),)
        sample = self._draw("calibration", 0, _CALIBRATION_EXAMPLES)
        self._teacher = Teacher(dim, seed, *sample)
        num_test = num_examples // 10
        self._columns = {
            "train": self._generate("train", num_examples - num_test),
            "test": self._generate("test", num_test),
        }

    def num_examples(self, split: str) -> int:
        return len(self.labels(split))

    def labels(self, split: str) -> Float32s:
        """Returns the labels of `split` in the log's order, shape `(num_examples,)`."""
        return self._column(split, "labels")

    def probabilities(self, split: str) -> Float64s:
        """Returns the true click probabilities of `split` in the log's order.

        They are the best scores that any model can reach: their AUC and log loss
        against `labels(split)` bound what training can achieve.
        """
        return self._column(split, "probabilities")

    def vocabulary(self, feature_name: str) -> npt.NDArray[Any]:
        if self.feature(feature_name).is_dense:
            raise ValueError(
                "A vocabulary belongs to a feature of ids, such as 'ids'. "
                f"Received: feature_name={feature_name!r}, a dense feature. "
                "Feed dense numbers to the model as they are."
            )
        both = [self._column(split, feature_name).ravel() for split in self._columns]
        ids: npt.NDArray[Any] = np.unique(np.concatenate(both))
        return ids

    def _column(self, split: str, name: str) -> npt.NDArray[Any]:
        check_split(split)
        return self._columns[split][name]

    def _generate(self, split: str, num_examples: int) -> dict[str, npt.NDArray[Any]]:
        columns: dict[str, npt.NDArray[Any]] = {
            "ids": np.empty((num_examples, self.fields), np.int64),
            "dense": np.empty((num_examples, self.num_dense), np.float32),
            "probabilities": np.empty(num_examples, np.float64),
            "labels": np.empty(num_examples, np.float32),
        }
        for start in range(0, num_examples, _CHUNK):
            stop = min(start + _CHUNK, num_examples)
            ranks, dense = self._draw(split, start, stop)
            probabilities = self._teacher.probabilities(ranks, dense)
            chance = self._chance("label", split, _index(start, stop))
            columns["ids"][start:stop] = self._scatter(ranks)
            columns["dense"][start:stop] = dense
            columns["probabilities"][start:stop] = probabilities
            columns["labels"][start:stop] = chance < probabilities
        for column in columns.values():
            column.setflags(write=False)  # They are handed out without a copy.
        return columns

    def _draw(self, stream: str, start: int, stop: int) -> tuple[Int64s, Float32s]:
        """Returns ranks `(n, fields)` and dense numbers of examples start to stop."""
        index = _index(start, stop)[:, None]
        ids_chance = self._chance("rank", stream, index, np.arange(self.fields))
        dense = self._chance("dense", stream, index, np.arange(self.num_dense))
        return bounded_zipf(ids_chance, self.ids_per_field), dense.astype(np.float32)

    def _chance(self, purpose: str, stream: str, *parts: Integers) -> Float64s:
        return to_unit(hash64(purpose, self.seed, stream, *parts))

    def _scatter(self, ranks: Int64s) -> Int64s:
        """Returns the ids of ranks `(n, fields)`: a bijection of (field, rank)."""
        numbers = np.arange(self.fields) * self.ids_per_field + ranks
        key = hash64("scatter", self.seed)
        return mix64(numbers.astype(np.uint64) ^ key).view(np.int64)

    def _gatherer(self, split: str) -> "Callable[[tf.Tensor], Batch]":
        import tensorflow as tf

        with tf.device("CPU:0"):
            labels = tf.constant(self.labels(split))
            inputs = {
                feature.name: tf.constant(self._column(split, feature.name))
                for feature in self.features
            }

        def gather(indices: "tf.Tensor") -> "Batch":
            rows = {name: tf.gather(value, indices) for name, value in inputs.items()}
            return rows, tf.gather(labels, indices)

        return gather


def bounded_zipf(chance: Float64s, num_ranks: int | Int64s) -> Int64s:
    """Maps chance in [0, 1) to ranks from 0 to `num_ranks - 1`, rank 0 most frequent.

    The inverse of the distribution function of the continuous power law
    `x ** -1.05` on [1, num_ranks + 1), rounded down: no table, however many ranks.
    Several numbers of ranks are those of the last axis of `chance`.
    """
    power = 1 - ZIPF_EXPONENT
    tail = (num_ranks + 1.0) ** power - 1
    ranks: Int64s = ((1 + chance * tail) ** (1 / power) - 1).astype(np.int64)
    # Rounding may carry a chance just below 1 to the open end.
    return np.minimum(ranks, num_ranks - 1, out=ranks)


def _index(start: int, stop: int) -> UInt64s:
    return np.arange(start, stop, dtype=np.uint64)


def _check_range(name: str, value: int, low: int, high: int | None = None) -> None:
    if not is_integer(value) or value < low or (high is not None and value > high):
        limits = f"{low} or more" if high is None else f"from {low} to {high}"
        raise ValueError(
            f"`{name}` must be an integer, {limits}. Received: {name}={value!r}. "
            f"Set `{name}` to a value in that range."
        )
