"""`StackFields`: the vectors of all features, side by side."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tfctr")
class StackFields(keras.layers.Layer):
    """Stacks the vectors of features into fields, in the order of their names.

    Call arguments:
        inputs: Dict of float tensors `(batch, dim)` or `(batch, width, dim)`.

    Returns:
        Float tensor of shape `(batch, fields, dim)`.

    Example:

    >>> StackFields()({"a": np.ones((2, 4)), "b": np.ones((2, 3, 4))}).shape
    TensorShape([2, 4, 4])
    """

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, inputs: Mapping[str, Any]) -> Any:
        parts = [inputs[name] for name in sorted(inputs)]
        if len(parts) == 1 and len(parts[0].shape) == 3:
            return parts[0]
        columns = [
            ops.expand_dims(part, 1) if len(part.shape) == 2 else part for part in parts
        ]
        return ops.concatenate(columns, axis=1)

    def compute_output_shape(
        self, input_shape: Mapping[str, tuple[int | None, ...]]
    ) -> tuple[int | None, ...]:
        shapes = list(input_shape.values())
        fields = sum(1 if len(shape) == 2 else shape[1] or 0 for shape in shapes)
        return (shapes[0][0], fields, shapes[0][-1])
