"""`scale_learning_rate`: the rate for a batch that many ranks share."""

import math
import numbers

from tfctr import distributed

_RULES = ("none", "sqrt", "linear")


def scale_learning_rate(
    rate: float, rule: str = "none", factor: float | None = None
) -> float:
    """Returns the learning rate for a larger batch.

    `rate * factor` by the rule `"linear"`, `rate * sqrt(factor)` by `"sqrt"`, `rate` by
    `"none"`: right when the ranks share out a batch of the same size as before.

    Args:
        rate: Float. The learning rate of one rank. For a schedule, scale the numbers it
            is made of.
        rule: String. `"none"`, `"sqrt"` or `"linear"`.
        factor: Float. How many times larger the batch is. `None` means the number of
            ranks.

    Raises:
        ValueError: If an argument is none of these.

    Example:

    >>> scale_learning_rate(0.001, "sqrt", factor=4)
    0.002

    References:
        - [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), section 2.1: linear
        - [Krizhevsky, 2014](https://arxiv.org/abs/1404.5997), section 5: square root
    """
    if not isinstance(rate, numbers.Real):
        raise ValueError(
            f"`rate` must be a number. Received: rate={rate!r}. Scale the numbers that "
            "a schedule is made of."
        )
    if rule not in _RULES:
        raise ValueError(
            f"`rule` must be one of 'none', 'sqrt', 'linear'. Received: rule={rule!r}."
        )
    if factor is None:
        factor = distributed.size()
    if not 0 < factor < math.inf:
        raise ValueError(
            f"`factor` must be a positive number. Received: factor={factor}."
        )
    power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[rule]
    return float(rate * factor**power)
