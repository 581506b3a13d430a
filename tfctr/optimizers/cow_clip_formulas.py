"""What CowClip does to the gradients of rows: pure functions of tensors."""

import dataclasses
import math

import tensorflow as tf

from keras_layers.number_checks import is_number, to_python_numbers
from keras_layers.row_clipping import clip_lengths, l2_gradients, shorten

VARIANTS = ("paper", "reference_code")


@dataclasses.dataclass(frozen=True)
class ClipRule:
    """How far a row may be moved; see `CowClip`."""

    ratio: float = 1.0
    floor: float = 1e-5
    l2: float = 0.0
    variant: str = "paper"
    clip_linear: bool = False

    def __post_init__(self) -> None:
        for name, most in (("ratio", "infinite"), ("floor", "infinite"), ("l2", "")):
            value = getattr(self, name)
            in_range = is_number(value) and value >= 0
            if not (in_range and (most or math.isfinite(value))):
                allowed = ", or infinite" if most else ""
                raise ValueError(
                    f"`{name}` must be a number, not negative{allowed}. Received: "
                    f"{name}={value!r}."
                )
        if self.variant not in VARIANTS:
            raise ValueError(
                "`variant` must be one of 'paper', 'reference_code'. Received: "
                f"variant={self.variant!r}."
            )
        if type(self.clip_linear) is not bool:
            raise ValueError(
                "`clip_linear` must be True or False. Received: "
                f"clip_linear={self.clip_linear!r}."
            )
        to_python_numbers(self)

    def clips(self, dim: int) -> bool:
        """Returns whether rows of this width are clipped."""
        return dim > 1 or self.clip_linear


def clip_rows(
    gradient: tf.Tensor, weights: tf.Tensor, counts: tf.Tensor, rule: ClipRule
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the gradients of rows, clipped and with L2, and which were clipped.

    The variant `"paper"`, where |.| is the norm of a row:

        clip = count * max(ratio * |w|, floor)
        g = g * min(1, clip / |g|) + (2 * l2 * w if count > 0)

    and `"reference_code"`, where an absent id counts 1:

        g = g + 2 * l2 * w
        clip = ratio * max(count, 1) * max(|w|, ratio * sqrt(dim) * floor)
        g = g * min(1, clip / |g|)

    A zero gradient stays zero but for L2. In the paper, nothing is left of the gradient
    of an id with a count of 0; otherwise an infinite `ratio` or `floor` never clips.
    Rows of one weight are not clipped unless the rule says so.

    Args:
        gradient: Float tensor `(n, dim)`, sums over all occurrences of an id.
        weights: Float tensor `(n, dim)`, before the step.
        counts: Float tensor `(n,)`: in how many samples the id occurs.
        rule: `ClipRule`.

    Returns:
        `gradient` anew, and a boolean tensor `(n,)`.
    """
    # Squares of rounded numbers: half precision has too few bits and too little range.
    dtype = tf.float64 if weights.dtype == tf.float64 else tf.float32
    found, weights = tf.cast(gradient, dtype), tf.cast(weights, dtype)
    counts = tf.cast(counts, dtype)
    clips = rule.clips(weights.shape[-1])
    is_clipped = tf.zeros(tf.shape(counts), tf.bool)
    if rule.variant == "paper":
        if clips:
            limits = clip_lengths(weights, counts, rule.ratio, rule.floor)
            found, is_clipped = shorten(found, limits)
        if rule.l2:
            found += l2_gradients(weights, counts, rule.l2)
    else:
        if rule.l2:
            found += l2_gradients(weights, None, rule.l2)
        if clips:
            found, is_clipped = shorten(found, _reference_clip(weights, counts, rule))
    return tf.cast(found, gradient.dtype), is_clipped


def _reference_clip(weights: tf.Tensor, counts: tf.Tensor, rule: ClipRule) -> tf.Tensor:
    """Returns how long the gradient of each row may be in the authors' code."""
    least = rule.floor
    if math.isfinite(least):
        least *= rule.ratio**2 * math.sqrt(weights.shape[-1])
    return clip_lengths(weights, tf.maximum(counts, 1), rule.ratio, least)
