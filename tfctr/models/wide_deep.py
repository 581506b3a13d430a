"""`WideDeep`: a linear model beside a deep network."""

from collections.abc import Sequence
from typing import Any

import keras

from tfctr.feature import Feature
from tfctr.models.click_model import ClickModel
from tfctr.models.feature_vectors import FeatureVectors
from tfctr.models.network_parts import NetworkParts


@keras.saving.register_keras_serializable(package="tfctr")
class WideDeep(ClickModel):
    """Predicts the probability of a click by a linear part and an MLP.

        p = sigmoid(bias + linear part + MLP([v_1, ..., numbers]))

    The `v_i` are the vectors of the ids, the numbers are the dense features. The linear
    part is the sum of one weight per id, and a weighted sum of the numbers. The
    paper's linear part has products of features too: give them an id column.

    Args:
        features: `Feature`s of the inputs.
        vectors: `FeatureVectors`: where vectors and weights come from.
        dim: Integer. Width of the vectors.
        hidden_units: Integers. Widths of the layers of the MLP.
        dropout: Float. Share of the units of each hidden layer that training drops.

    Call arguments:
        inputs: Dict with one tensor per feature, shaped as its `Feature` says.

    Returns:
        Float tensor of shape `(batch, 1)`, probabilities.

    Raises:
        ValueError: If no feature holds ids, two have one name, or `dim` is not
            positive.

    Example:

    >>> tables = DynamicTables(keras.optimizers.Adagrad(0.01))
    >>> model = WideDeep([Feature("ids", "int64", width=3)], tables, dim=4)
    >>> model({"ids": np.array([[1, 2, 3], [4, 5, 6]])}).shape
    TensorShape([2, 1])

    References:
        - [Cheng et al., 2016](https://arxiv.org/abs/1606.07792)
    """

    def __init__(
        self,
        features: Sequence[Feature],
        vectors: FeatureVectors,
        dim: int = 10,
        hidden_units: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        parts = NetworkParts(features, vectors, dim, hidden_units, dropout)
        hidden = parts.mlp(parts.flat_inputs(), parts.hidden_units)
        super().__init__(parts, hidden, [parts.linear_logit()], **kwargs)
