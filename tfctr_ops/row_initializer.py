"""`RowInitializer`: the law of the first weights of a row, as data."""

import dataclasses
import math

KINDS = ("constant", "uniform", "normal", "truncated_normal")


@dataclasses.dataclass(frozen=True)
class RowInitializer:
    """Describes from what a row starts.

    The weights are a pure function of the feature's seed and the id, so neither the
    order in which ids arrive nor eviction or restart changes them. The function stands
    in `cc/store/row_initializer.h`.

    Args:
        kind: String. `"constant"`, `"uniform"`, `"normal"` or `"truncated_normal"`
            (cut at two standard deviations).
        location: Float. The constant, the least value, or the mean.
        scale: Float. The range of `"uniform"`, or the standard deviation before the
            cut. `"constant"` ignores it.

    Raises:
        ValueError: If `kind` is unknown or `scale` negative.

    Example:

    >>> RowInitializer("uniform", location=-0.05, scale=0.1)
    RowInitializer(kind='uniform', location=-0.05, scale=0.1)
    """

    kind: str
    location: float = 0.0
    scale: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            known = ", ".join(f"'{kind}'" for kind in KINDS)
            raise ValueError(
                f"`kind` must be one of {known}. Received: kind={self.kind!r}."
            )
        if not math.isfinite(self.location):
            raise ValueError(
                "`location` must be a finite number. "
                f"Received: location={self.location}."
            )
        if not (self.scale >= 0.0 and math.isfinite(self.scale)):
            raise ValueError(
                "`scale` must be a finite number, not negative. "
                f"Received: scale={self.scale}."
            )
