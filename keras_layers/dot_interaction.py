"""`DotInteraction`: one number for every pair of feature embeddings."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

Shape = tuple[int | None, ...]


@keras.saving.register_keras_serializable(package="tfctr")
class DotInteraction(keras.layers.Layer):
    """Computes the dot product of each pair of feature embeddings.

    Where `FactorizationMachine` adds the products up, this layer keeps them apart
    as features of the layers that follow, as DLRM does. It has no weights.

    Args:
        include_self: Boolean. Whether the squared norm of each embedding is kept
            too.

    Call arguments:
        inputs: Float tensor of shape `(batch, num_features, dim)`.

    Returns:
        Float tensor of shape `(batch, num_pairs)`. With `n` features, `num_pairs`
        is `n * (n - 1) / 2`, or `n * (n + 1) / 2` with `include_self`. The pairs
        `(i, j)` are sorted by `i`, then by `j`, with `j < i` (`j <= i` with
        `include_self`).

    Raises:
        ValueError: If `inputs` is not of rank 3, if the number of features is not
            static, or if there is no pair to form.

    Example:

    >>> vectors = np.array([[[1.0, 0.0], [2.0, 3.0], [0.0, 5.0]]])
    >>> DotInteraction()(vectors).numpy()  # pairs (1, 0), (2, 0), (2, 1)
    array([[ 2.,  0., 15.]], dtype=float32)

    References:
        - [Naumov et al., 2019](https://arxiv.org/abs/1906.00091), section 2.1.3
    """

    def __init__(self, include_self: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.include_self = include_self

    def build(self, input_shape: Shape) -> None:
        num_features = self._num_features(input_shape)
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={1: num_features})

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        vectors = ops.cast(inputs, self.compute_dtype)
        num_features = vectors.shape[1]
        # (batch, n, dim) @ (batch, dim, n) -> (batch, n, n), the Gram matrix
        gram = ops.matmul(vectors, ops.swapaxes(vectors, 1, 2))
        rows, columns = np.tril_indices(num_features, 0 if self.include_self else -1)
        flat = ops.reshape(gram, (-1, num_features * num_features))
        return ops.take(flat, rows * num_features + columns, axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        num_features = self._num_features(input_shape)
        offset = 1 if self.include_self else -1
        return (input_shape[0], num_features * (num_features + offset) // 2)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "include_self": self.include_self}

    def _num_features(self, input_shape: Shape) -> int:
        if len(input_shape) != 3 or input_shape[1] is None:
            raise ValueError(
                f"`DotInteraction` layer '{self.name}' expects inputs of shape "
                "(batch, num_features, dim), with a static `num_features`. "
                f"Received: input_shape={tuple(input_shape)}. "
                "Stack the embeddings first: keras.ops.stack(embeddings, axis=1)."
            )
        if input_shape[1] < 2 and not self.include_self:
            raise ValueError(
                f"`DotInteraction` layer '{self.name}' expects at least two features "
                "to pair. "
                f"Received: input_shape={tuple(input_shape)}. "
                "Stack more embeddings, or pass include_self=True."
            )
        return input_shape[1]
