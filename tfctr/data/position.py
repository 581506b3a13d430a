"""`Position`: where a run stands in its click log."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfctr.data.number_checks import is_integer


@dataclasses.dataclass(frozen=True)
class Position:
    """Names the next batch that a run is to deliver.

    A position is stored with a checkpoint and passed to `ClickLog.batches` to resume.
    It counts batches, so it means the same only under the same split, seed, batch
    size and `drop_remainder`.

    Args:
        epoch: Integer. Number of epochs that are complete.
        batch: Integer. Number of batches of the current epoch already delivered.

    Raises:
        ValueError: If a count is not a non-negative integer.

    Example:

    >>> position = Position(epoch=2, batch=7)
    >>> position.advanced(num_batches=5, steps_per_epoch=10)
    Position(epoch=3, batch=2)
    >>> position.to_dict()
    {'epoch': 2, 'batch': 7}
    >>> Position.from_dict(position.to_dict()) == position
    True
    """

    epoch: int = 0
    batch: int = 0

    def __post_init__(self) -> None:
        for name, count in (("epoch", self.epoch), ("batch", self.batch)):
            if not is_integer(count) or count < 0:
                raise ValueError(
                    f"`{name}` of a position must be a non-negative integer. "
                    f"Received: {name}={count!r}. The start is Position(0, 0)."
                )
            object.__setattr__(self, name, int(count))

    def advanced(self, num_batches: int, steps_per_epoch: int) -> "Position":
        """Returns the position after `num_batches` more batches.

        Args:
            num_batches: Integer, not negative. Batches delivered since this position.
            steps_per_epoch: Integer, positive. See `ClickLog.steps_per_epoch`.
        """
        if num_batches < 0 or steps_per_epoch < 1:
            raise ValueError(
                "`num_batches` must not be negative and `steps_per_epoch` must be "
                f"positive. Received: num_batches={num_batches}, "
                f"steps_per_epoch={steps_per_epoch}. "
                "To go back, restore the position of an older checkpoint."
            )
        epochs, batch = divmod(self.batch + num_batches, steps_per_epoch)
        return Position(self.epoch + epochs, batch)

    def to_dict(self) -> dict[str, int]:
        """Returns the position as a dict that JSON can hold."""
        return {"epoch": self.epoch, "batch": self.batch}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Position":
        """Returns the position that `to_dict` wrote.

        Raises:
            ValueError: If `state` has other keys than "epoch" and "batch".
        """
        if set(state) != {"epoch", "batch"}:
            raise ValueError(
                "A stored position must have exactly the keys 'epoch' and 'batch'. "
                f"Received: {dict(state)!r}. Pass what `Position.to_dict` returned."
            )
        return cls(state["epoch"], state["batch"])


START = Position()
