"""`SparseOptimizer`: what a fused update does to a row, as data."""

import dataclasses
import math
from typing import Any

KINDS = ("sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl")

# What keeps the denominator of a rule from zero: one of them must not be zero.
_DENOMINATORS = {
    "adagrad": ("epsilon", "initial_accumulator_value"),
    "rowwise_adagrad": ("epsilon", "initial_accumulator_value"),
    "adam": ("epsilon",),
    "ftrl": ("initial_accumulator_value", "l2", "beta"),
}

# Beyond it in magnitude, no gradient is taken for real; `kGradientBound` of cc/store.
GRADIENT_BOUND = 1e12


@dataclasses.dataclass(frozen=True)
class SparseOptimizer:
    """Describes the update of the row of a key.

    The update sees the sum `g` of the key's gradients in the step and moves only rows
    that have one. The formulas are those of the Keras optimizers of the same names;
    they stand in full in `cc/store/sparse_optimizer.h`. `"adam"` with a `weight_decay`
    is AdamW. `"rowwise_adagrad"` keeps one accumulator for the whole row, fed by the
    mean of the squared gradients.

    Before any of that, each kind can clip the gradient as CowClip does (Zheng et al.,
    2022, https://arxiv.org/abs/2204.06240, Algorithm 1), and then add an L2 penalty:

    ```
    clip = count * max(clip_ratio * |w|, clip_floor)
    g = g * min(1, clip / |g|)
    g = g + 2 * l2_penalty * w
    ```

    where `w` are the weights of the row before this step, `|.|` is the L2 norm of a
    row, and `count` is how many samples of the step have the key: the sum of the
    `counts` that its lookups were given. A gradient of zeros stays so. A count of 0
    makes any gradient zero, and gets no L2 penalty; without a `clip_ratio` nothing is
    counted, and each row has a sample.

    Args:
        kind: String. `"sgd"`, `"adagrad"`, `"rowwise_adagrad"`, `"adam"` or `"ftrl"`.
        learning_rate: Float. Where a Keras optimizer was converted, the layer reads
            that optimizer's learning rate at each step instead.
        beta_1: Float in [0, 1). Decay of Adam's first moment.
        beta_2: Float in [0, 1). Decay of Adam's second moment.
        epsilon: Float. Added to the denominator of Adam, and below the root of Adagrad.
        bias_correction: String. `"global"` corrects Adam's moments by the number of
            updates of the table, as Keras does; `"row"` by those of the row.
        weight_decay: Float. Fraction of the weights, times the learning rate, that a
            touched row loses before the update.
        initial_accumulator_value: Float. Start of the accumulators of Adagrad and FTRL.
        learning_rate_power: Float, at most 0. Power of FTRL's accumulator.
        l1: Float. FTRL's L1 strength.
        l2: Float. FTRL's L2 strength, a part of its formula; not `l2_penalty`.
        l2_shrinkage: Float. FTRL's L2 penalty on the gradient of its linear term alone;
            not `l2_penalty`.
        beta: Float. FTRL's beta.
        clip_ratio: Float, at least 0; infinity clips no row. `None`: no clipping.
        clip_floor: Float, at least 0; infinity clips no row. With 0, rows of zeros
            never move.
        l2_penalty: Float. Strength of the L2 penalty of every kind, in the convention
            of Keras, on rows that have a gradient.
        clip_linear: Boolean. Whether rows of one weight are clipped too: they have no
            direction to keep.

    Raises:
        ValueError: If a value lies outside its range.

    Example:

    >>> SparseOptimizer("adam", learning_rate=1e-3).num_slot_floats(dim=16)
    32
    """

    kind: str
    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    bias_correction: str = "global"
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.1
    learning_rate_power: float = -0.5
    l1: float = 0.0
    l2: float = 0.0
    l2_shrinkage: float = 0.0
    beta: float = 0.0
    clip_ratio: float | None = None
    clip_floor: float = 0.0
    l2_penalty: float = 0.0
    clip_linear: bool = True

    def __post_init__(self) -> None:
        _check_option("kind", self.kind, KINDS)
        _check_option("bias_correction", self.bias_correction, ("global", "row"))
        for name in ("beta_1", "beta_2"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise ValueError(
                    f"`{name}` must lie in [0, 1). Received: {name}={value}."
                )
        for name in (
            "learning_rate",
            "epsilon",
            "weight_decay",
            "initial_accumulator_value",
            "l1",
            "l2",
            "l2_shrinkage",
            "beta",
            "l2_penalty",
        ):
            value = getattr(self, name)
            if not (value >= 0.0 and math.isfinite(value)):
                raise ValueError(
                    f"`{name}` must be a finite number, not negative. "
                    f"Received: {name}={value}."
                )
        power = self.learning_rate_power
        if not (power <= 0.0 and math.isfinite(power)):
            raise ValueError(
                "`learning_rate_power` must be a finite number, not positive. "
                f"Received: learning_rate_power={power}."
            )
        self._check_clip()
        self._check_denominator()

    def _check_clip(self) -> None:
        if type(self.clip_linear) is not bool:
            raise ValueError(
                "`clip_linear` must be True or False. Received: "
                f"clip_linear={self.clip_linear!r}."
            )
        for name in ("clip_ratio", "clip_floor"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise ValueError(
                    f"`{name}` must not be negative; infinity clips nothing. "
                    f"Received: {name}={value}."
                )
        if self.clip_ratio is None and self.clip_floor != 0.0:
            raise ValueError(
                "`clip_floor` is a part of clipping, which a `clip_ratio` asks for. "
                f"Received: clip_floor={self.clip_floor}, clip_ratio=None. Give a "
                "clip_ratio, such as 1.0, or no clip_floor."
            )

    def _check_denominator(self) -> None:
        """Refuses settings under which a zero gradient gives zero by zero."""
        names = _DENOMINATORS.get(self.kind, ())
        if names and not any(getattr(self, name) for name in names):
            listed = " or ".join(f"`{name}`" for name in names)
            raise ValueError(
                f"{listed} of '{self.kind}' must be above 0, or a zero gradient would "
                "make a row NaN. Received: "
                + ", ".join(f"{name}={getattr(self, name)}" for name in names)
                + "."
            )

    def for_dim(self, dim: int) -> "SparseOptimizer":
        """Returns the update of rows of this width, which clips each of them or none.

        Args:
            dim: Integer. Width of the weights.
        """
        if self.clip_linear:
            return self
        decided = dataclasses.replace(self, clip_linear=True)
        if dim > 1:
            return decided
        return dataclasses.replace(decided, clip_ratio=None, clip_floor=0.0)

    def op_attributes(self) -> dict[str, Any]:
        """Returns the attributes of ops that make this update."""
        return dict(
            optimizer=self.kind,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            per_row_bias_correction=self.bias_correction == "row",
            weight_decay=self.weight_decay,
            initial_accumulator=self.initial_accumulator_value,
            learning_rate_power=self.learning_rate_power,
            l1=self.l1,
            l2=self.l2,
            l2_shrinkage=self.l2_shrinkage,
            beta=self.beta,
            clip_ratio=-1.0 if self.clip_ratio is None else self.clip_ratio,
            clip_floor=self.clip_floor,
            l2_penalty=self.l2_penalty,
        )

    def num_slot_floats(self, dim: int) -> int:
        """Returns how many floats of state a row of `dim` weights carries.

        Args:
            dim: Integer. Width of the weights.
        """
        per_weight = {"sgd": 0, "adagrad": 1, "adam": 2, "ftrl": 2}
        if self.kind == "rowwise_adagrad":
            return 1
        return per_weight[self.kind] * dim


def _check_option(name: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        known = ", ".join(f"'{option}'" for option in options)
        raise ValueError(
            f"`{name}` must be one of {known}. Received: {name}={value!r}."
        )
