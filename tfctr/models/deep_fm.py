"""`DeepFM`: factorization machine and deep network on shared vectors."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from keras_layers import FactorizationMachine
from tfctr.feature import Feature
from tfctr.models.feature_vectors import FeatureVectors
from tfctr.models.stack_fields import StackFields


@keras.saving.register_keras_serializable(package="tfctr")
class DeepFM(keras.Model):
    """Predicts the probability of a click.

        p = sigmoid(bias + Σ w_i + Σ_{i<j} <v_i, v_j> + dense part + MLP([v_1, ...]))

    Every id has a vector `v` and a weight `w`, side by side in one row `[v | w]` of
    width `dim + 1`, so that it is looked up once. The factorization machine and the MLP
    share the vectors.

    Args:
        features: `Feature`s of the inputs.
        vectors: `FeatureVectors`: where weights and vectors come from.
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
    >>> model = DeepFM([Feature("ids", "int64", width=3)], tables, dim=4)
    >>> model({"ids": np.array([[1, 2, 3], [4, 5, 6]])}).shape
    TensorShape([2, 1])

    References:
        - [Guo et al., 2017](https://arxiv.org/abs/1703.04247)
    """

    def __init__(
        self,
        features: Sequence[Feature],
        vectors: FeatureVectors,
        dim: int = 16,
        hidden_units: Sequence[int] = (128, 128),
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        inputs = {feature.name: _input(feature) for feature in features}
        if len(inputs) < len(features):
            raise ValueError(
                "`features` must have a name each, which no other has. Received: "
                f"features={[feature.name for feature in features]}."
            )
        if dim < 1:
            raise ValueError(f"`dim` must be a positive integer. Received: dim={dim}.")
        id_features = [feature for feature in features if not feature.is_dense]
        if not id_features:
            raise ValueError(
                "`features` must hold at least one feature of ids. Received: "
                f"features={[feature.name for feature in features]}, all dense."
            )
        ids = {feature.name: inputs[feature.name] for feature in id_features}
        rows = StackFields(name="fields")(
            vectors.layer("vectors", id_features, dim + 1)(ids)
        )
        # (batch, fields, dim) and (batch, fields, 1)
        fields, weights = keras.ops.split(rows, [dim], axis=-1)
        logits = [
            keras.ops.sum(weights, axis=1),
            FactorizationMachine(name="factorization_machine")(fields),
        ]
        hidden = keras.layers.Flatten(name="flat_fields")(fields)
        dense = [
            keras.layers.Reshape((feature.width or 1,))(inputs[feature.name])
            for feature in features
            if feature.is_dense
        ]
        if dense:
            numbers = dense[0] if len(dense) == 1 else keras.ops.concatenate(dense, -1)
            logits.append(
                keras.layers.Dense(1, use_bias=False, name="dense_weights")(numbers)
            )
            hidden = keras.layers.Concatenate(name="deep_inputs")([hidden, numbers])
        for index, units in enumerate(hidden_units):
            name = f"hidden_{index}"
            hidden = keras.layers.Dense(units, activation="relu", name=name)(hidden)
            if dropout:
                hidden = keras.layers.Dropout(dropout, name=f"dropout_{index}")(hidden)
        logits.append(keras.layers.Dense(1, name="deep_logit")(hidden))
        logit = keras.layers.Add(name="logit")(logits)
        output = keras.layers.Activation("sigmoid", name="probability")(logit)
        super().__init__(inputs=inputs, outputs=output, **kwargs)
        self.features = tuple(features)
        self.vectors = vectors
        self.dim = dim
        self.hidden_units = tuple(hidden_units)
        self.dropout = dropout

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "features": [dataclasses.asdict(feature) for feature in self.features],
            "vectors": keras.saving.serialize_keras_object(self.vectors),
            "dim": self.dim,
            "hidden_units": list(self.hidden_units),
            "dropout": self.dropout,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "DeepFM":
        config = dict(config)
        config["features"] = [Feature(**feature) for feature in config["features"]]
        config["vectors"] = keras.saving.deserialize_keras_object(config["vectors"])
        return cls(**config)


def _input(feature: Feature) -> Any:
    return keras.Input(
        feature.shape,
        dtype=feature.dtype,
        ragged=feature.is_bag,
        name=feature.name,
    )
