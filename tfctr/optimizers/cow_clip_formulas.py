"""What CowClip does to the gradients of rows: pure functions of tensors."""

import dataclasses
import math

import tensorflow as tf

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
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (is_number and value >= 0 and (most or math.isfinite(value))):
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

    def for_dim(self, dim: int) -> "ClipRule":
        """Returns the rule for rows of this width."""
        if dim > 1 or self.clip_linear:
            return self
        return dataclasses.replace(self, ratio=math.inf)


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

    A zero gradient stays zero but for L2. An infinite `ratio` or `floor` never clips.

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
    decay = 2 * rule.l2 * weights
    if rule.variant == "paper":
        found, is_clipped = _shorten(found, paper_clip(weights, counts, rule))
        if rule.l2:
            found += tf.where(counts[:, tf.newaxis] > 0, decay, 0)
    else:
        found, is_clipped = _shorten(
            found + decay if rule.l2 else found,
            reference_clip(weights, tf.maximum(counts, 1), rule),
        )
    return tf.cast(found, gradient.dtype), is_clipped


def paper_clip(weights: tf.Tensor, counts: tf.Tensor, rule: ClipRule) -> tf.Tensor:
    """Returns the longest gradient of each row, `(n,)`, as the paper has it."""
    if math.isinf(rule.ratio) or math.isinf(rule.floor):
        return tf.fill(tf.shape(counts), tf.constant(math.inf, counts.dtype))
    return counts * tf.maximum(rule.ratio * _norm(weights), rule.floor)


def reference_clip(weights: tf.Tensor, counts: tf.Tensor, rule: ClipRule) -> tf.Tensor:
    """Returns the longest gradient of each row, `(n,)`, as the authors' code has it."""
    if math.isinf(rule.ratio) or math.isinf(rule.floor):
        return tf.fill(tf.shape(counts), tf.constant(math.inf, counts.dtype))
    least = rule.ratio * math.sqrt(weights.shape[-1]) * rule.floor
    return rule.ratio * counts * tf.maximum(_norm(weights), least)


def _norm(rows: tf.Tensor) -> tf.Tensor:
    # Half as many ops as `tf.norm`, which counts where a model has many small tables.
    return tf.sqrt(tf.reduce_sum(tf.square(rows), axis=-1))


def _shorten(gradient: tf.Tensor, clip: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns rows of at most these norms, and which were longer."""
    norm = _norm(gradient)
    # A zero row is no longer than any clip, and NaN compares as no longer: it stays.
    is_longer = norm > clip
    scale = tf.where(is_longer, tf.math.divide_no_nan(clip, norm), 1)
    return gradient * scale[:, tf.newaxis], is_longer
