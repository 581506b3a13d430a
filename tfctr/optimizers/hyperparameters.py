"""`scale_hyperparameters`: what a larger batch asks for."""

import dataclasses
import math

from keras_layers.number_checks import is_integer, is_number, to_python_numbers
from tfctr.optimizers.learning_rate import scale_learning_rate


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """What depends on the size of the batch.

    Args:
        batch_size: Integer. Examples of a step, on all ranks together.
        embedding_learning_rate: Float.
        dense_learning_rate: Float. Of all other weights.
        l2: Float. Of the embeddings; see `CowClip`.

    Raises:
        ValueError: If a value is out of range.

    Example:

    >>> Hyperparameters(1024, 1e-4, 8e-4, 1e-5).dense_learning_rate
    0.0008
    """

    batch_size: int
    embedding_learning_rate: float
    dense_learning_rate: float
    l2: float = 0.0

    def __post_init__(self) -> None:
        if not is_integer(self.batch_size) or self.batch_size < 1:
            raise ValueError(
                "`batch_size` must be a positive integer. Received: "
                f"batch_size={self.batch_size!r}."
            )
        for name in ("embedding_learning_rate", "dense_learning_rate", "l2"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value < math.inf:
                raise ValueError(
                    f"`{name}` must be a finite number, not negative. Received: "
                    f"{name}={value!r}."
                )
        to_python_numbers(self)


# By rule, how the embedding learning rate, the dense one and L2 grow. Each is a rule of
# `scale_learning_rate`, which is applied as often as it stands there.
_RULES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "none": (("none",), ("none",), ("none",)),
    "sqrt": (("sqrt",), ("sqrt",), ("sqrt",)),
    "linear": (("linear",), ("linear",), ("none",)),
    "n2_lambda": (("none",), ("sqrt",), ("linear", "linear")),
    "cowclip": (("none",), ("sqrt",), ("linear",)),
}


def scale_hyperparameters(
    rule: str, scale: float, base: Hyperparameters
) -> Hyperparameters:
    """Returns the hyperparameters for a batch `scale` times as large.

    | rule | embedding learning rate | dense learning rate | L2 |
    |---|---|---|---|
    | `"none"` | 1 | 1 | 1 |
    | `"sqrt"` | √scale | √scale | √scale |
    | `"linear"` | scale | scale | 1 |
    | `"n2_lambda"` | 1 | √scale | scale² |
    | `"cowclip"` | 1 | √scale | scale |

    `"cowclip"` goes with `CowClip`; `"n2_lambda"` is what the paper derives without it.
    `scale_learning_rate` scales one learning rate by the number of ranks.

    Args:
        rule: String. One of those of the table.
        scale: Float. How many times larger the batch is.
        base: `Hyperparameters` of the batch that they were found for.

    Raises:
        ValueError: If an argument is none of these, or the batch is no whole number.

    Example:

    >>> base = Hyperparameters(1024, 1e-4, 8e-4, l2=1e-5)
    >>> larger = scale_hyperparameters("cowclip", 4, base)
    >>> larger.batch_size, larger.dense_learning_rate, larger.l2
    (4096, 0.0016, 4e-05)

    References:
        - [Zheng et al., 2022](https://arxiv.org/abs/2204.06240)
    """
    if rule not in _RULES:
        raise ValueError(
            f"`rule` must be one of {', '.join(map(repr, _RULES))}. Received: "
            f"rule={rule!r}."
        )
    if not is_number(scale) or not 0 < scale < math.inf:
        raise ValueError(
            f"`scale` must be a positive number. Received: scale={scale!r}."
        )
    batch_size = base.batch_size * float(scale)
    if batch_size != round(batch_size):
        raise ValueError(
            "`scale` must make a whole number of the batch size. Received: "
            f"scale={scale} and base.batch_size={base.batch_size}, which make "
            f"{batch_size}. Give new_batch_size / base.batch_size."
        )

    def scaled(value: float, rules: tuple[str, ...]) -> float:
        for one in rules:
            value = scale_learning_rate(value, one, factor=scale)
        return value

    embedding, dense, l2 = _RULES[rule]
    return Hyperparameters(
        round(batch_size),
        scaled(base.embedding_learning_rate, embedding),
        scaled(base.dense_learning_rate, dense),
        scaled(base.l2, l2),
    )
