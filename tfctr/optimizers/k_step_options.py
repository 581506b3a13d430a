"""The options of `KStepAdam`, checked."""

import dataclasses
from typing import Any, Self

from keras_layers.number_checks import is_integer, to_python_numbers

# What is not given, by way to merge. An option without a line here is not for it.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "frozen_denominator": {
        "epsilon": 1e-8,
        "warmup_merges": 50,
        "bias_correction": False,
        "amsgrad": True,
    },
    "parameters": {"epsilon": 1e-7, "warmup_merges": 0},
    "parameters_and_moments": {"epsilon": 1e-7, "warmup_merges": 0},
}


@dataclasses.dataclass(frozen=True)
class KStepOptions:
    """How the moments run, and when and what the ranks merge; see `KStepAdam`."""

    k: int
    merge: str
    beta_1: float
    beta_2: float
    epsilon: float
    warmup_merges: int
    # None unless the denominator is frozen.
    bias_correction: bool | None = None
    amsgrad: bool | None = None

    @classmethod
    def of(cls, merge: str, **options: Any) -> Self:
        """Returns the options, with defaults for those that are `None`.

        Raises:
            ValueError: If one is out of range, or is not for this way to merge.
        """
        if merge not in _DEFAULTS:
            raise ValueError(
                f"`merge` must be one of {', '.join(map(repr, _DEFAULTS))}. Received: "
                f"merge={merge!r}."
            )
        given = {name: one for name, one in options.items() if one is not None}
        for name in ("bias_correction", "amsgrad"):
            if name in given and name not in _DEFAULTS[merge]:
                raise ValueError(
                    f"`{name}` is for merge='frozen_denominator' alone. Received: "
                    f"{name}={given[name]!r} and merge={merge!r}, which is Adam with "
                    "its bias corrected. Leave it out."
                )
        return cls(merge=merge, **{**_DEFAULTS[merge], **given})

    def __post_init__(self) -> None:
        if not is_integer(self.k) or self.k < 1:
            raise ValueError(f"`k` must be a positive integer. Received: k={self.k!r}.")
        if not is_integer(self.warmup_merges) or self.warmup_merges < 0:
            raise ValueError(
                "`warmup_merges` must be an integer, not negative. Received: "
                f"warmup_merges={self.warmup_merges!r}."
            )
        for name in ("beta_1", "beta_2"):
            beta = getattr(self, name)
            if not 0 <= beta < 1:
                raise ValueError(
                    f"`{name}` must be at least 0 and below 1. Received: {name}={beta}."
                )
        if not self.epsilon > 0:
            raise ValueError(
                f"`epsilon` must be above 0. Received: epsilon={self.epsilon}."
            )
        to_python_numbers(self)

    @property
    def is_frozen(self) -> bool:
        """Whether all ranks divide by the same, which changes in merges only."""
        return self.merge == "frozen_denominator"

    @property
    def first_merge(self) -> int:
        """A step of the schedule: at once, or not before the k-th."""
        return 1 if self.is_frozen else self.k
