"""`ClickModel`: from logits to the probability of a click."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import keras

from tfctr.feature import Feature
from tfctr.models.network_parts import NetworkParts
from tfctr.models.static_embedding import StaticEmbedding


class ClickModel(keras.Model):
    """Base of the networks: a subclass makes the last layers, and this the rest.

        p = sigmoid(bias + sum of the logits + weights . last)

    Args:
        parts: `NetworkParts` of which the network was made.
        last: Tensor `(batch, units)`: what the output layer sees.
        logits: Tensors `(batch, 1)`.
    """

    def __init__(
        self, parts: NetworkParts, last: Any, logits: Sequence[Any] = (), **kwargs: Any
    ) -> None:
        # Its bias is the only one of all logits.
        logit = keras.layers.Dense(1, name="deep_logit")(last)
        if logits:
            logit = keras.layers.Add(name="logit")([*logits, logit])
        output = keras.layers.Activation("sigmoid", name="probability")(logit)
        super().__init__(inputs=parts.inputs, outputs=output, **kwargs)
        self.features = parts.features
        self.vectors = parts.vectors
        self.dim = parts.dim
        self.hidden_units = parts.hidden_units
        self.dropout = parts.dropout

    @property
    def embedding_layers(self) -> list[keras.layers.Embedding]:
        """The `keras.layers.Embedding`s of vectors and of weights; dynamic: none."""
        return [
            table
            for layer in self.layers
            if isinstance(layer, StaticEmbedding)
            for table in layer.tables.values()
        ]

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
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        config = dict(config)
        config["features"] = [Feature(**feature) for feature in config["features"]]
        config["vectors"] = keras.saving.deserialize_keras_object(config["vectors"])
        return cls(**config)
