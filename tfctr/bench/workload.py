"""`Workload`: the ids every system is measured on.

Only NumPy and the standard library: the peers' interpreters import this module too.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Knuth's multiplicative hash. It is prime, so it permutes the rows of every table
# whose size it does not divide: hot ids lie apart, as they do in real logs.
_SPREAD = 2654435761


@dataclass(frozen=True)
class Workload:
    """Click-log shaped ids: every field draws from its own power law.

    The rank of an id follows a bounded Zipf law, drawn by its inverse distribution
    function, and its number is `rank * 2654435761 % rows_per_field`. The same
    arguments give the same ids on every machine.

    Args:
        num_fields: Integer. Number of categorical fields.
        rows_per_field: Integer. Number of different ids of a field.
        dim: Integer. Width of a row.
        batch_size: Integer. Examples in a batch.
        num_batches: Integer. Number of fixed batches, used in turn.
        exponent: Float, not 1. Exponent of the power law.
        seed: Integer. Seed of the ids and of the gradient.

    Example:

    >>> Workload(num_fields=2, rows_per_field=10, batch_size=3).batches().shape
    (8, 3, 2)
    """

    num_fields: int = 26
    rows_per_field: int = 100_000
    dim: int = 16
    batch_size: int = 4096
    num_batches: int = 8
    exponent: float = 1.05
    seed: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of all fields together."""
        return self.num_fields * self.rows_per_field

    def batches(self) -> npt.NDArray[np.int64]:
        """The ids of every batch, `(num_batches, batch_size, num_fields)`."""
        rng = np.random.default_rng(self.seed)
        shape = (self.num_batches, self.batch_size, self.num_fields)
        # A power law over the reals of [1, rows + 1), cut down to whole ranks. The
        # draw is the probability of a larger rank.
        power = 1.0 - self.exponent
        tail = float(self.rows_per_field + 1) ** power
        real_ranks = (tail + rng.random(shape) * (1.0 - tail)) ** (1.0 / power)
        ranks = np.clip(real_ranks.astype(np.int64) - 1, 0, self.rows_per_field - 1)
        ids: npt.NDArray[np.int64] = ranks * _SPREAD % self.rows_per_field
        return ids

    def offsets(self) -> npt.NDArray[np.int64]:
        """What to add to each field's ids so that one table holds all fields."""
        return np.arange(self.num_fields, dtype=np.int64) * self.rows_per_field

    def gradient(self) -> npt.NDArray[np.float32]:
        """The gradient of the vectors, `(batch_size, num_fields, dim)`."""
        rng = np.random.default_rng(self.seed + 1)
        shape = (self.batch_size, self.num_fields, self.dim)
        return rng.normal(scale=0.01, size=shape).astype(np.float32)

    def dense_features(self, num_dense: int) -> npt.NDArray[np.float32]:
        """Dense features of every batch, `(num_batches, batch_size, num_dense)`."""
        rng = np.random.default_rng(self.seed + 2)
        shape = (self.num_batches, self.batch_size, num_dense)
        return rng.normal(size=shape).astype(np.float32)

    def labels(self) -> npt.NDArray[np.float32]:
        """Clicks of every batch, `(num_batches, batch_size)`; a quarter are 1."""
        rng = np.random.default_rng(self.seed + 3)
        clicks = rng.random((self.num_batches, self.batch_size)) < 0.25
        return clicks.astype(np.float32)

    def num_unique(self) -> npt.NDArray[np.int64]:
        """Number of different (field, id) pairs in each batch."""
        pairs = (self.batches() + self.offsets()).reshape(self.num_batches, -1)
        return np.array([np.unique(batch).size for batch in pairs], np.int64)


W = Workload()
W4 = Workload(rows_per_field=400_000)
