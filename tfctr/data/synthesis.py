"""`SyntheticStream`: a log of any size, shaped like a public one, as it drifts."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tfctr.data.hashing import Integers, hash64, to_unit
from tfctr.data.synthetic import bounded_zipf
from tfctr.data.teacher import Teacher

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]

# Distinct ids of each category in Criteo Kaggle and in Avazu, rounded: what there is to
# choose from.
SHAPES = {
    "criteo": (
        *(1_500, 600, 10_000_000, 2_200_000, 300, 24, 12_500, 630, 3, 93_000),
        *(5_700, 8_400_000, 3_200, 27, 15_000, 5_500_000, 10, 5_700, 2_200, 4),
        *(7_000_000, 18, 15, 290_000, 105, 140_000),
    ),
    "avazu": (
        *(7, 7, 4_700, 7_700, 26, 8_600, 560, 36, 2_700_000, 6_700_000, 8_300),
        *(5, 4, 2_600, 8, 9, 440, 4, 68, 170, 60),
    ),
}
NUM_DENSE = {"criteo": 13, "avazu": 0}
_TEACHER_DIM = 4
_CALIBRATION_EXAMPLES = 8_192
# The logarithm of a number goes up to this.
_MAX_LOG = 6.0
# A number is missing this often.
_MISSING_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Clicks:
    """Some examples of a `SyntheticStream`.

    Args:
        ids: int64 `(n, fields)`, from 0 to 2**32 - 1.
        numbers: int64 `(n, num_dense)`; -1 stands for none.
        labels: float32 `(n,)`.
        probabilities: float64 `(n,)`. Of which the labels were drawn.
    """

    ids: Int64s
    numbers: Int64s
    labels: Float32s
    probabilities: Float64s

    def __len__(self) -> int:
        return len(self.labels)


class SyntheticStream:
    """Draws a click log of any size, in the order of time, chunk by chunk.

    Ids follow the power law of `SyntheticClickLog`, over as many as the public log of
    that shape has. With `drift`, the ids of a rank take turns: each rank is given to a
    new id `drift` times in the course of the log, at times of its own, and while the
    share of the new one grows that of the old one fades. A new id has weights of its
    own in the `Teacher` that decides the clicks. Everything is a pure function of
    the arguments and the number of the example.

    Args:
        num_examples: Integer. Length of the log.
        shape: String. "criteo": 13 integers and 26 categories; "avazu": 21 categories.
        max_ids: Integer, 2 or more. Limit of the distinct ids that a category has at a
            time.
        drift: Float. How often each id is replaced; 0: never.
        seed: Integer. Seeds everything.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> stream = SyntheticStream(1000, shape="avazu", max_ids=50)
    >>> [len(clicks) for clicks in stream.chunks(400)]
    [400, 400, 200]
    """

    def __init__(
        self,
        num_examples: int,
        shape: str = "criteo",
        max_ids: int = 10_000_000,
        drift: float = 1.0,
        seed: int = 0,
    ) -> None:
        if shape not in SHAPES:
            raise ValueError(
                f"`shape` must be one of {', '.join(map(repr, SHAPES))}. "
                f"Received: shape={shape!r}."
            )
        for name, value, low, high in (
            ("num_examples", num_examples, 1, 2**53),
            ("max_ids", max_ids, 2, 2**53),
            ("drift", drift, 0, 10**6),
            ("seed", seed, 0, 2**64 - 1),
        ):
            if not low <= value <= high:
                raise ValueError(
                    f"`{name}` must be from {low} to {high}. Received: {name}={value}."
                )
        self.num_examples = num_examples
        self.shape = shape
        self.num_dense = NUM_DENSE[shape]
        self.drift = drift
        self.seed = seed
        self._ids_per_field = np.minimum(np.array(SHAPES[shape]), max_ids)
        sample = np.arange(_CALIBRATION_EXAMPLES, dtype=np.uint64)
        numbers = self._numbers("calibration", sample)
        ranks = self._ranks("calibration", sample)
        self._teacher = Teacher(_TEACHER_DIM, seed, ranks, _as_seen(numbers))

    def chunks(self, size: int) -> Iterator[Clicks]:
        """Yields the log in order, `size` examples at a time."""
        for start in range(0, self.num_examples, size):
            stop = min(start + size, self.num_examples)
            yield self._draw(np.arange(start, stop, dtype=np.uint64))

    def _draw(self, index: npt.NDArray[np.uint64]) -> Clicks:
        ranks = self._ranks("rank", index)
        ids = ranks + self._generations(index, ranks) * self._ids_per_field
        numbers = self._numbers("number", index)
        probabilities = self._teacher.probabilities(ranks, _as_seen(numbers), ids)
        fields = np.arange(ranks.shape[1])
        written = hash64("id", self.seed, fields, ids) >> np.uint64(32)
        return Clicks(
            written.astype(np.int64),
            numbers,
            (self._chance("label", index) < probabilities).astype(np.float32),
            probabilities,
        )

    def _ranks(self, purpose: str, index: npt.NDArray[np.uint64]) -> Int64s:
        fields = np.arange(len(self._ids_per_field))
        chance = self._chance(purpose, index[:, None], fields)
        return bounded_zipf(chance, self._ids_per_field)

    def _generations(self, index: npt.NDArray[np.uint64], ranks: Int64s) -> Int64s:
        """Returns the how manieth id of its rank each example meets."""
        fields = np.arange(ranks.shape[1])
        turns = index.astype(np.float64) / self.num_examples * self.drift
        phase = self._chance("phase", fields, ranks)
        # Between two turns the chance decides: the next id grows as the last one fades.
        fade = self._chance("fade", index[:, None], fields)
        return np.floor(turns[:, None] + (phase + fade) / 2).astype(np.int64)

    def _numbers(self, purpose: str, index: npt.NDArray[np.uint64]) -> Int64s:
        chance = self._chance(purpose, index[:, None], np.arange(self.num_dense))
        scaled = (chance - _MISSING_SHARE) / (1 - _MISSING_SHARE)
        numbers = np.exp(_MAX_LOG * np.maximum(scaled, 0)) - 1
        return np.where(scaled < 0, -1, numbers).astype(np.int64)

    def _chance(self, purpose: str, *parts: Integers) -> Float64s:
        return to_unit(hash64(purpose, self.seed, *parts))


def _as_seen(numbers: Int64s) -> Float32s:
    """What the teacher makes of numbers; it takes those that are missing for 0."""
    scaled: Float64s = np.log1p(np.maximum(numbers, 0)) / _MAX_LOG
    return scaled.astype(np.float32)
