"""Admission: which ids get a row, of those that training meets without one.

Most ids of a click log are seen a few times and never again. Rows for them take memory
and learn nothing. A table with `TableConfig(admission=...)` makes a row for an id only
when the admission says so. Until then the id reads the table's default row, and its
gradients are dropped.
"""

import dataclasses
from typing import Any

from keras_layers.number_checks import is_integer, is_number, to_python_numbers


@dataclasses.dataclass(frozen=True)
class CountAdmission:
    """Admits an id when it has been seen `min_count` times in training.

    Every occurrence in a batch counts, those of the present batch included: the step
    that completes the count makes the row, and trains it. The counts are exact; each id
    that waits takes some tens of bytes of memory, which `stats` tells.

    Args:
        min_count: Integer. How often an id was seen that gets a row.

    Raises:
        ValueError: If `min_count` is not a positive integer of 31 bits.

    Example:

    >>> TableConfig("ads", 8, keras.optimizers.Adagrad(0.1),
    ...             admission=CountAdmission(min_count=5)).admission
    CountAdmission(min_count=5)
    """

    min_count: int

    def __post_init__(self) -> None:
        _check_integer("min_count", self.min_count, 2**31 - 1)
        to_python_numbers(self)

    def store_options(self) -> dict[str, Any]:
        """Returns what a `tfctr_ops.StoreConfig` is told of it."""
        return {"admission": "count", "admission_min_count": self.min_count}


@dataclasses.dataclass(frozen=True)
class BloomAdmission:
    """Admits an id when it has been seen about `min_count` times in training.

    As `CountAdmission`, but counted by a counting Bloom filter, whose memory does not
    grow: `-log(p) / log(2)**2` counters for each expected id, 9.6 for a rate p of 1 %,
    of one byte up to a `min_count` of 255 and of two beyond. No id is admitted later
    than by an exact count, and some are earlier. A filter cannot forget: an id that was
    removed or has expired keeps the count it had before it got its row. Each checkpoint
    copies the whole filter in memory first, while training waits.

    Args:
        min_count: Integer, up to 65,535. How often an id was seen that gets a row.
        expected_keys: Integer. How many distinct ids training meets. Beyond, more ids
            than the rate says are counted too high.
        false_positive_rate: Float in (0, 1). The share of ids whose count is too high
            when as many ids as expected have been counted.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> BloomAdmission(min_count=3, expected_keys=10**9).false_positive_rate
    0.01
    """

    min_count: int
    expected_keys: int
    false_positive_rate: float = 0.01

    def __post_init__(self) -> None:
        _check_integer("min_count", self.min_count, 2**16 - 1)
        _check_integer("expected_keys", self.expected_keys, 2**63 - 1)
        rate = self.false_positive_rate
        if not is_number(rate) or not 0.0 < rate < 1.0:
            raise ValueError(
                "`false_positive_rate` must lie in (0, 1). "
                f"Received: false_positive_rate={self.false_positive_rate!r}."
            )
        to_python_numbers(self)

    def store_options(self) -> dict[str, Any]:
        """Returns what a `tfctr_ops.StoreConfig` is told of it."""
        return {
            "admission": "bloom",
            "admission_min_count": self.min_count,
            "admission_expected_keys": self.expected_keys,
            "admission_false_positive_rate": self.false_positive_rate,
        }


@dataclasses.dataclass(frozen=True)
class ProbabilityAdmission:
    """Admits an id with some probability each time it is seen in training.

    It needs no memory. An id that stands in a batch k times is admitted with
    probability `1 - (1 - p)**k`. The draw is a function of the table's seed, the
    feature, the id and the number of updates so far, so a run can be repeated; calls of
    the layer in one step draw the same.

    Args:
        probability: Float in (0, 1].

    Raises:
        ValueError: If `probability` is out of range.

    Example:

    >>> ProbabilityAdmission(0.1)
    ProbabilityAdmission(probability=0.1)
    """

    probability: float

    def __post_init__(self) -> None:
        if not is_number(self.probability) or not 0.0 < self.probability <= 1.0:
            raise ValueError(
                "`probability` must lie in (0, 1]. "
                f"Received: probability={self.probability!r}."
            )
        to_python_numbers(self)

    def store_options(self) -> dict[str, Any]:
        """Returns what a `tfctr_ops.StoreConfig` is told of it."""
        return {
            "admission": "probability",
            "admission_probability": self.probability,
        }


Admission = CountAdmission | BloomAdmission | ProbabilityAdmission

_KINDS: dict[str, type[Admission]] = {
    "count": CountAdmission,
    "bloom": BloomAdmission,
    "probability": ProbabilityAdmission,
}


def admission_to_config(admission: Admission | None) -> dict[str, Any] | None:
    """Returns a JSON-able description of an admission."""
    if admission is None:
        return None
    kind = next(kind for kind, cls in _KINDS.items() if type(admission) is cls)
    return {"kind": kind, **dataclasses.asdict(admission)}


def admission_from_config(config: dict[str, Any] | None) -> Admission | None:
    """Returns the admission that `admission_to_config` described."""
    if config is None:
        return None
    arguments = dict(config)
    return _KINDS[arguments.pop("kind")](**arguments)


def _check_integer(name: str, value: Any, most: int) -> None:
    if not is_integer(value) or not 1 <= value <= most:
        raise ValueError(
            f"`{name}` must be an integer in [1, {most}]. Received: {name}={value!r}."
        )
