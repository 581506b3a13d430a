"""`FactorizationMachine`: the sum of all pairwise dot products."""

from collections.abc import Callable

import keras
import tensorflow as tf
from keras import ops

Shape = tuple[int | None, ...]


@ops.custom_gradient
def pairwise_dot_sum(
    vectors: tf.Tensor,
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Sums `<v_i, v_j>` over all `i < j`; float `(b, n, dim)` to `(b, 1)`.

    The gradient of `v_i` is `upstream * (total - v_i)`, with `total` the sum of
    all vectors. It is written out because automatic differentiation keeps the
    squares apart and passes over the large tensor more often.
    """
    batch, num_features, dim = ops.shape(vectors)
    # Two axes instead of three: TensorFlow reduces and broadcasts rows faster.
    flat = ops.reshape(vectors, (batch, num_features * dim))
    total = ops.sum(vectors, axis=1)
    square_of_sum = ops.sum(ops.square(total), axis=1, keepdims=True)
    sum_of_squares = ops.sum(ops.square(flat), axis=1, keepdims=True)

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        others = ops.tile(total, (1, num_features)) - flat
        return ops.reshape(upstream * others, (batch, num_features, dim))

    return 0.5 * (square_of_sum - sum_of_squares), gradient


@keras.saving.register_keras_serializable(package="tfctr")
class FactorizationMachine(keras.layers.Layer):
    """Sums the dot products of every pair of feature embeddings.

        output = sum_{i < j} <v_i, v_j> = (|sum_i v_i|^2 - sum_i |v_i|^2) / 2

    The layer has no weights: `v_i` is the embedding of feature `i`. The result is
    the second-order logit of DeepFM, to which the linear terms are added. Half
    precision inputs are summed in float32, since the formula subtracts two
    numbers that may be close.

    Call arguments:
        inputs: Float tensor of shape `(batch, num_features, dim)`.

    Returns:
        Float tensor of shape `(batch, 1)`.

    Raises:
        ValueError: If `inputs` is not of rank 3.

    Example:

    >>> FactorizationMachine()(np.ones((2, 3, 4))).numpy()
    array([[12.],
           [12.]], dtype=float32)

    References:
        - [Rendle, 2010](https://doi.org/10.1109/ICDM.2010.127)
        - [Guo et al., 2017](https://arxiv.org/abs/1703.04247), section 2.1
    """

    def build(self, input_shape: Shape) -> None:
        self._check_rank(input_shape)
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        wide = "float64" if self.compute_dtype == "float64" else "float32"
        return ops.cast(pairwise_dot_sum(ops.cast(inputs, wide)), self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        self._check_rank(input_shape)
        return (input_shape[0], 1)

    def _check_rank(self, input_shape: Shape) -> None:
        if len(input_shape) != 3:
            raise ValueError(
                f"`FactorizationMachine` layer '{self.name}' expects inputs of shape "
                "(batch, num_features, dim). "
                f"Received: input_shape={tuple(input_shape)}. "
                "Stack the embeddings first: keras.ops.stack(embeddings, axis=1)."
            )
