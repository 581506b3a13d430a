"""`DLRM`: dot products of all pairs of vectors, and an MLP on them."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_layers import DotInteraction
from tfctr.feature import Feature
from tfctr.models.click_model import ClickModel
from tfctr.models.feature_vectors import FeatureVectors
from tfctr.models.network_parts import NetworkParts, to_widths


@keras.saving.register_keras_serializable(package="tfctr")
class DLRM(ClickModel):
    """Predicts the probability of a click by an MLP on products of vectors.

        z = relu(projection of bottom MLP(numbers))
        p = sigmoid(bias + weights . MLP([z, <z, v_1>, ..., <v_i, v_j>, ...]))

    The `v_i` are the vectors of the ids, and `z` is one of all dense features, the
    numbers. Without dense features there is no `z`.

    Args:
        features: `Feature`s of the inputs.
        vectors: `FeatureVectors`: where the vectors come from.
        dim: Integer. Width of the vectors.
        hidden_units: Integers. Widths of the layers of the MLP on top.
        dropout: Float. Share of the units of each hidden layer that training drops.
        bottom_units: Integers. Widths of the layers of the MLP on the dense features,
            before one of width `dim`.

    Call arguments:
        inputs: Dict with one tensor per feature, shaped as its `Feature` says.

    Returns:
        Float tensor of shape `(batch, 1)`, probabilities.

    Raises:
        ValueError: If no feature holds ids, two have one name, there are no two vectors
            to multiply, or `dim` is not positive.

    Example:

    >>> tables = DynamicTables(keras.optimizers.Adagrad(0.01))
    >>> model = DLRM([Feature("ids", "int64", width=3)], tables, dim=4)
    >>> model({"ids": np.array([[1, 2, 3], [4, 5, 6]])}).shape
    TensorShape([2, 1])

    References:
        - [Naumov et al., 2019](https://arxiv.org/abs/1906.00091), sections 2 and 5
    """

    def __init__(
        self,
        features: Sequence[Feature],
        vectors: FeatureVectors,
        dim: int = 16,
        hidden_units: Sequence[int] = (512, 256),
        dropout: float = 0.0,
        bottom_units: Sequence[int] = (512, 256, 64),
        **kwargs: Any,
    ) -> None:
        bottom_units = to_widths("bottom_units", bottom_units)
        parts = NetworkParts(features, vectors, dim, hidden_units, dropout)
        interact = DotInteraction(name="dot_interaction")
        if parts.numbers is None:
            _check_pairs(parts)
            top = interact(parts.fields)
        else:
            bottom = parts.mlp(parts.numbers, bottom_units, name="bottom")
            dense = keras.layers.Dense(dim, activation="relu", name="dense_vector")
            vector = dense(bottom)
            first = keras.layers.Reshape((1, dim), name="dense_field")(vector)
            stack = keras.layers.Concatenate(axis=1, name="all_fields")
            pairs = interact(stack([first, parts.fields]))
            top = keras.layers.Concatenate(name="top_inputs")([vector, pairs])
        super().__init__(parts, parts.mlp(top, parts.hidden_units), **kwargs)
        self.bottom_units = bottom_units

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bottom_units": list(self.bottom_units)}


def _check_pairs(parts: NetworkParts) -> None:
    if parts.fields.shape[1] < 2:
        names = [feature.name for feature in parts.features]
        raise ValueError(
            "`features` of DLRM must give at least two vectors to multiply: columns of "
            "ids or bags, and one of all dense features. "
            f"Received: features={names}, one column of ids."
        )
