"""`DCN`: cross layers with vector weights beside a deep network."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_layers import CrossNetwork
from tfctr.feature import Feature
from tfctr.models.click_model import ClickModel
from tfctr.models.feature_vectors import FeatureVectors
from tfctr.models.network_parts import NetworkParts

CROSS_L2 = 1e-5


@keras.saving.register_keras_serializable(package="tfctr")
class DCN(ClickModel):
    """Predicts the probability of a click by bounded-degree crosses and an MLP.

        x_0 = [v_1, ..., numbers]
        p = sigmoid(bias + linear part + weights . [cross(x_0), MLP(x_0)])

    where `cross` is `CrossNetwork` in its "vector" form. The loss gains 1e-5 times the
    squares of its kernels.

    The `v_i` are the vectors of the ids, the numbers are the dense features. The linear
    part is the sum of one weight per id, and a weighted sum of the numbers.

    Args:
        features: `Feature`s of the inputs.
        vectors: `FeatureVectors`: where vectors and weights come from.
        dim: Integer. Width of the vectors.
        hidden_units: Integers. Widths of the layers of the MLP.
        dropout: Float. Share of the units of each hidden layer that training drops.
        num_cross_layers: Integer. Crosses reach one degree more.

    Call arguments:
        inputs: Dict with one tensor per feature, shaped as its `Feature` says.

    Returns:
        Float tensor of shape `(batch, 1)`, probabilities.

    Raises:
        ValueError: If no feature holds ids, two have one name, or `dim` or
            `num_cross_layers` is not positive.

    Example:

    >>> tables = DynamicTables(keras.optimizers.Adagrad(0.01))
    >>> model = DCN([Feature("ids", "int64", width=3)], tables, dim=4)
    >>> model({"ids": np.array([[1, 2, 3], [4, 5, 6]])}).shape
    TensorShape([2, 1])

    References:
        - [Wang et al., 2017](https://arxiv.org/abs/1708.05123)
        - [Zheng et al., 2022](https://arxiv.org/abs/2204.06240), whose linear part,
          regularizer and default sizes these are
    """

    def __init__(
        self,
        features: Sequence[Feature],
        vectors: FeatureVectors,
        dim: int = 10,
        hidden_units: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        num_cross_layers: int = 3,
        **kwargs: Any,
    ) -> None:
        parts = NetworkParts(features, vectors, dim, hidden_units, dropout)
        cross = CrossNetwork(
            num_cross_layers,
            kernel_regularizer=keras.regularizers.L2(CROSS_L2),
            name="cross_network",
        )
        last = parts.beside_mlp(cross)
        super().__init__(parts, last, [parts.linear_logit()], **kwargs)
        self.num_cross_layers = num_cross_layers

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_cross_layers": self.num_cross_layers}
