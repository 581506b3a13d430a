"""The fused update of rows that lie in a table of others, on the CPU."""

import tensorflow as tf

from tfctr_ops import library
from tfctr_ops.sparse_optimizer import SparseOptimizer


def update_fused_rows(
    optimizer: SparseOptimizer,
    rows: tf.Tensor,
    gradients: tf.Tensor,
    features: tf.Tensor,
    updates: tf.Tensor,
    samples: tf.Tensor,
    learning_rate: tf.Tensor | float,
    step: tf.Tensor | int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns distinct rows after one update, as an `EmbeddingStore` makes it.

    A row is `[weights | slots | feature | updates | last update]`, the last three being
    int32 whose bits stand in the place of a float32.

    Args:
        optimizer: `SparseOptimizer`.
        rows: float32 `(m, dim + slots + 3)`. The counters are not looked at.
        gradients: float32 `(m, dim)`, summed over equal keys.
        features: int32 `(m,)`.
        updates: int32 `(m,)`. How many updates each row has seen.
        samples: int32 `(m,)`. How many samples have each key; `(0,)` is enough where
            nothing is clipped.
        learning_rate: float32 scalar.
        step: int64 scalar. The number of this update, counted from 1.

    Returns:
        float32 `(m, dim + slots + 3)`, counters included, and how many gradients were
        clipped, an int64 scalar.

    Raises:
        tf.errors.InvalidArgumentError: If shapes do not fit each other.

    Example:

    >>> rows = tf.constant([[1.0, 2.0, 0.0, 0.0, 0.0]])
    >>> one = tf.constant([1])
    >>> moved, _ = update_fused_rows(
    ...     SparseOptimizer("sgd"), rows, tf.ones((1, 2)), one, one, one, 0.5, 7)
    >>> moved[:, :2].numpy(), tf.bitcast(moved[:, 2:], tf.int32).numpy()
    (array([[0.5, 1.5]], dtype=float32), array([[1, 2, 7]], dtype=int32))
    """
    dim = gradients.shape[1]
    decided = optimizer if dim is None else optimizer.for_dim(dim)
    updated, num_clipped = library.load().tfctr_update_fused_rows(
        rows,
        gradients,
        features,
        updates,
        samples,
        learning_rate,
        tf.cast(step, tf.int64),
        **decided.op_attributes(),
    )
    return updated, num_clipped
