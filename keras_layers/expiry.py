"""`Expiry`: which rows are removed in the course of training."""

import dataclasses
import math
from typing import Any

from keras_layers.number_checks import is_integer, is_number, to_python_numbers


@dataclasses.dataclass(frozen=True)
class Expiry:
    """Removes rows that were long not updated, are near zero, or are too many.

    Every `every` updates of the table, in the update itself, all rows are looked at,
    those on SSD as well, which are read there once or, for `max_rows`, twice: choose
    `every` so that this pays. Only rows that were ever trained or written count. An id
    that expired starts again as one that was never seen.

    Rows that were only written, as by `write_rows`, count as last updated at the very
    beginning.

    Args:
        every: Integer. How many updates lie between two looks. `None`: rows leave only
            when `DynamicEmbedding.expire` is called.
        unused_steps: Integer. Rows leave that were not updated for more updates of the
            table than this. `None`: no row leaves for that.
        min_norm: Float. Rows leave whose weights have an L2 norm below this. `None`: no
            row leaves for that.
        max_rows: Integer. How many rows stay, of each table; the others, longest not
            updated, leave. `None`: no row leaves for that.

    Raises:
        ValueError: If an argument is out of range, or none says which rows leave.

    Example:

    >>> TableConfig("ads", 8, keras.optimizers.Adagrad(0.1),
    ...             expiry=Expiry(every=1000, unused_steps=100_000)).expiry.every
    1000
    """

    every: int | None
    unused_steps: int | None = None
    min_norm: float | None = None
    max_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "unused_steps", "max_rows"):
            value = getattr(self, name)
            if value is not None and not (is_integer(value) and 1 <= value < 2**63):
                raise ValueError(
                    f"`{name}` must be a positive integer, or None. "
                    f"Received: {name}={value!r}."
                )
        norm = self.min_norm
        if norm is not None and not (
            is_number(norm) and norm > 0.0 and math.isfinite(norm)
        ):
            raise ValueError(
                "`min_norm` must be a positive number, or None. "
                f"Received: min_norm={norm!r}."
            )
        if self.unused_steps is None and norm is None and self.max_rows is None:
            raise ValueError(
                "An Expiry must say which rows leave: give `unused_steps`, `min_norm` "
                "or `max_rows`. Received: None for all of them."
            )
        to_python_numbers(self)

    def store_options(self) -> dict[str, Any]:
        """Returns what a `tfctr_ops.StoreConfig` is told of it."""
        return {
            f"expiry_{name}": value for name, value in dataclasses.asdict(self).items()
        }
