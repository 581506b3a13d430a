"""Medians, ratios, and how sure a ratio is."""

from collections.abc import Sequence

import numpy as np

# Resamples of the bootstrap. The interval is told to two digits; more gain nothing.
_RESAMPLES = 2000


def median(values: Sequence[float]) -> float:
    return float(np.median(values))


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Median over median."""
    return median(numerator) / median(denominator)


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], level: float = 0.9
) -> tuple[float, float]:
    """The bootstrap interval of `ratio`.

    Both samples are drawn again, with replacement, many times; the interval holds the
    middle `level` of the ratios of these draws. It tells the scatter within this run,
    not what differs between runs, such as a machine that is slower today.

    Example:

    >>> ratio_interval([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    (2.0, 2.0)
    """
    rng = np.random.default_rng(0)
    ratios = _resampled_medians(rng, numerator) / _resampled_medians(rng, denominator)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(ratios, [tail, 1.0 - tail])
    return float(low), float(high)


def _resampled_medians(
    rng: np.random.Generator, values: Sequence[float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    draws = rng.choice(np.asarray(values, np.float64), (_RESAMPLES, len(values)))
    medians: np.ndarray[tuple[int], np.dtype[np.float64]] = np.median(draws, axis=1)
    return medians
