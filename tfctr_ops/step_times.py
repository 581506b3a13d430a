"""`step_times`: what training steps of this process have taken."""

from typing import NamedTuple

from tfctr_ops import library


class StepTimes(NamedTuple):
    """Wall time since the process began, over all stores.

    Attributes:
        lookup_seconds: Float. In which at least one lookup for training was under way.
        update_seconds: Float. In which at least one update was.

    Example:

    >>> StepTimes(lookup_seconds=0.5, update_seconds=0.25).lookup_seconds
    0.5
    """

    lookup_seconds: float
    update_seconds: float


def step_times() -> StepTimes:
    """Returns what training steps of this process have taken.

    Stores work at the same time, so what each has taken would add up to more.

    Example:

    >>> before = step_times()
    >>> step_times().lookup_seconds >= before.lookup_seconds
    True
    """
    lookups, updates = library.load().tfctr_step_times().numpy().tolist()
    return StepTimes(lookups * 1e-9, updates * 1e-9)
