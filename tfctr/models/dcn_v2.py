"""`DCNv2`: cross layers with low-rank experts, or matrices, beside a deep network."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_layers import CrossNetwork
from tfctr.feature import Feature
from tfctr.models.click_model import ClickModel
from tfctr.models.feature_vectors import FeatureVectors
from tfctr.models.network_parts import NetworkParts


@keras.saving.register_keras_serializable(package="tfctr")
class DCNv2(ClickModel):
    """Predicts the probability of a click by crosses with experts and an MLP.

        x_0 = [v_1, ..., numbers]
        p = sigmoid(bias + linear part + weights . [cross(x_0), MLP(x_0)])

    where `cross` is `CrossNetwork` in its "mixture" form, DCN-Mix: low-rank experts
    with tanh and a softmax gate; with `rank=None` in its "matrix" form.

    The `v_i` are the vectors of the ids, the numbers are the dense features. The linear
    part is the sum of one weight per id, and a weighted sum of the numbers.

    Args:
        features: `Feature`s of the inputs.
        vectors: `FeatureVectors`: where vectors and weights come from.
        dim: Integer. Width of the vectors.
        hidden_units: Integers. Widths of the layers of the MLP.
        dropout: Float. Share of the units of each hidden layer that training drops.
        num_cross_layers: Integer. Crosses reach one degree more.
        num_experts: Integer. Low-rank experts of each cross layer.
        rank: Integer. Inner width of the experts. `None` means one full matrix in each
            cross layer, and no experts.

    Call arguments:
        inputs: Dict with one tensor per feature, shaped as its `Feature` says.

    Returns:
        Float tensor of shape `(batch, 1)`, probabilities.

    Raises:
        ValueError: If no feature holds ids, two have one name, or one of the other
            integers is not positive.

    Example:

    >>> tables = DynamicTables(keras.optimizers.Adagrad(0.01))
    >>> model = DCNv2([Feature("ids", "int64", width=3)], tables, dim=4, rank=2)
    >>> model({"ids": np.array([[1, 2, 3], [4, 5, 6]])}).shape
    TensorShape([2, 1])

    References:
        - [Wang et al., 2021](https://arxiv.org/abs/2008.13535), sections 3.2 to 3.4
        - [Zheng et al., 2022](https://arxiv.org/abs/2204.06240), whose linear part and
          default sizes these are
    """

    def __init__(
        self,
        features: Sequence[Feature],
        vectors: FeatureVectors,
        dim: int = 10,
        hidden_units: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        num_cross_layers: int = 3,
        num_experts: int = 4,
        rank: int | None = 32,
        **kwargs: Any,
    ) -> None:
        parts = NetworkParts(features, vectors, dim, hidden_units, dropout)
        cross = CrossNetwork(
            num_cross_layers,
            variant="matrix" if rank is None else "mixture",
            rank=rank,
            num_experts=None if rank is None else num_experts,
            name="cross_network",
        )
        last = parts.beside_mlp(cross)
        super().__init__(parts, last, [parts.linear_logit()], **kwargs)
        self.num_cross_layers = num_cross_layers
        self.num_experts = num_experts
        self.rank = rank

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_cross_layers": self.num_cross_layers,
            "num_experts": self.num_experts,
            "rank": self.rank,
        }
