"""`Teacher`: the model that decides the clicks of a synthetic log."""

import numpy as np
import numpy.typing as npt

from tfctr.data.hashing import Integers, hash64, to_unit

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]

CLICK_RATE = 0.25
# Standard deviation of the logit. Together with the click rate it fixes how well the
# best model ranks: AUC about 0.87, with several fields.
LOGIT_SCALE = 2.2
# How much of the logit's variance comes from the linear part. At 0.6 a logistic
# regression stays about 0.1 of AUC below the best, so that interactions matter.
LINEAR_SHARE = 0.6
# Weights of rank r shrink by 1 / (1 + r / HALF_RANK). Were rare ids to matter as much
# as frequent ones, no model could learn them from the few examples that they have.
HALF_RANK = 10


class Teacher:
    """Knows the click probability of an example: a factorization machine.

    `probability = sigmoid(bias + linear + sum over pairs of <v_i, v_j>)`, where
    `linear` sums one weight per id and one per dense number. Every weight is a pure
    function of (seed, field, rank), so no table is kept. The two parts are scaled, and
    the bias is set, so that a sample has the click rate and logit scale above.

    Args:
        dim: Integer. Width of the vectors v.
        seed: Integer. Seeds the weights.
        ranks: int64 array of shape `(n, fields)`. The sample.
        dense: float32 array of shape `(n, num_dense)`. The sample's dense numbers.
    """

    def __init__(self, dim: int, seed: int, ranks: Int64s, dense: Float32s) -> None:
        self.dim = dim
        self.seed = seed
        linear, pairs = self._parts(ranks, dense)
        self._linear_scale = np.sqrt(LINEAR_SHARE) * _inverse_spread(linear)
        self._pairs_scale = np.sqrt(1 - LINEAR_SHARE) * _inverse_spread(pairs)
        logits = self._linear_scale * linear + self._pairs_scale * pairs
        scale = LOGIT_SCALE * _inverse_spread(logits)
        self._linear_scale *= scale
        self._pairs_scale *= scale
        self._bias = _bias_for_click_rate(logits * scale)

    def probabilities(
        self, ranks: Int64s, dense: Float32s, ids: Int64s | None = None
    ) -> Float64s:
        """Returns the click probability of each example, shape `(n,)`.

        Args:
            ranks: int64 `(n, fields)`. How frequent the ids are.
            dense: float32 `(n, num_dense)`.
            ids: int64 `(n, fields)`. What the weights are of; `None` means `ranks`.
        """
        linear, pairs = self._parts(ranks, dense, ids)
        return _sigmoid(
            self._bias + self._linear_scale * linear + self._pairs_scale * pairs
        )

    def _parts(
        self, ranks: Int64s, dense: Float32s, ids: Int64s | None = None
    ) -> tuple[Float64s, Float64s]:
        """Returns the linear and the pairwise part of the logits, unscaled."""
        ids = ranks if ids is None else ids
        fields = np.arange(ranks.shape[1])
        shrink = 1 / (1 + ranks / HALF_RANK)  # (n, fields)
        weights = _weights("linear", self.seed, fields, ids) * shrink
        vectors = _weights(
            "vector",
            self.seed,
            fields[:, None],
            np.arange(self.dim),
            ids[:, :, None],
        )
        vectors *= shrink[:, :, None]  # (n, fields, dim)
        dense_weights = _weights("dense weight", self.seed, np.arange(dense.shape[1]))
        linear = weights.sum(axis=1) + (dense * dense_weights).sum(axis=1)
        # All pairs at once: ((sum of v)**2 - sum of v**2) / 2, summed over dim.
        pairs = (vectors.sum(axis=1) ** 2 - (vectors**2).sum(axis=1)).sum(axis=1) / 2
        return linear, pairs


def _weights(*parts: int | str | Integers) -> Float64s:
    """Returns weights in [-1, 1), uniform in the hash of `parts`."""
    return 2 * to_unit(hash64(*parts)) - 1


def _inverse_spread(values: Float64s) -> float:
    """Returns 1 / the standard deviation, or 0 for a part that does not exist."""
    spread = float(values.std())
    # A single field has no pairs: its squares cancel up to rounding.
    return 1 / spread if spread > 1e-9 else 0.0


def _bias_for_click_rate(logits: Float64s) -> float:
    """Returns the bias under which the mean probability is `CLICK_RATE`."""
    # All probabilities at most, then at least, the click rate.
    target = np.log(CLICK_RATE / (1 - CLICK_RATE))
    low, high = target - logits.max(), target - logits.min()
    for _ in range(60):
        middle = (low + high) / 2
        if _sigmoid(middle + logits).mean() < CLICK_RATE:
            low = middle
        else:
            high = middle
    return float(middle)


def _sigmoid(logits: Float64s) -> Float64s:
    return 1 / (1 + np.exp(-logits))
