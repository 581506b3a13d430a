"""`NetworkParts`: inputs, lookups, linear part and MLP, of which networks are made."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_layers.number_checks import is_integer
from tfctr.feature import Feature
from tfctr.models.feature_vectors import FeatureVectors
from tfctr.models.stack_fields import StackFields


class NetworkParts:
    """Makes what the networks have in common, each part at most once in a model.

    Args:
        features: `Feature`s of the inputs.
        vectors: `FeatureVectors`: where vectors and weights come from.
        dim: Integer. Width of the vectors.
        hidden_units: Integers. Widths of the layers of the MLP.
        dropout: Float. Share of the units of each hidden layer that training drops.

    Attributes:
        inputs: Dict of Keras inputs, by the names of the features.
        fields: `(batch, fields, dim)`: the vectors of all ids, fields by name.
        numbers: `(batch, numbers)`: all dense features, in their order. `None` if there
            are none.

    Raises:
        ValueError: If no feature holds ids, two have one name, or `dim` is not
            positive.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        vectors: FeatureVectors,
        dim: int,
        hidden_units: Sequence[int],
        dropout: float,
    ) -> None:
        _check(features, dim)
        self.features = tuple(features)
        self.vectors = vectors
        self.dim = dim
        self.hidden_units = to_widths("hidden_units", hidden_units)
        self.dropout = dropout
        self.inputs = {feature.name: _input(feature) for feature in features}
        self._id_features = [feature for feature in features if not feature.is_dense]
        self._ids = {name: self.inputs[name] for name in _names(self._id_features)}
        layer = vectors.layer("vectors", self._id_features, dim)
        self.fields = StackFields(name="fields")(layer(self._ids))
        self.numbers = self._numbers()

    def flat_inputs(self) -> Any:
        """Returns `(batch, fields * dim + numbers)`: what an MLP sees."""
        flat = keras.layers.Flatten(name="flat_fields")(self.fields)
        if self.numbers is None:
            return flat
        return keras.layers.Concatenate(name="flat_inputs")([flat, self.numbers])

    def linear_logit(self) -> Any:
        """Returns `(batch, 1)`: one weight per id, and one per dense number.

        The weights of ids have a lookup of their own, so that an optimizer can treat
        them otherwise than the vectors.
        """
        layer = self.vectors.layer("weights", self._id_features, 1, is_linear=True)
        weights = StackFields(name="field_weights")(layer(self._ids))
        logit = keras.ops.sum(weights, axis=1)
        if self.numbers is None:
            return logit
        dense = keras.layers.Dense(1, use_bias=False, name="dense_weights")
        return keras.layers.Add(name="linear_logit")([logit, dense(self.numbers)])

    def beside_mlp(self, cross: keras.layers.Layer) -> Any:
        """Returns what `cross` and the MLP make of the flat inputs, concatenated."""
        inputs = self.flat_inputs()
        both = keras.layers.Concatenate(name="crossed_and_hidden")
        return both([cross(inputs), self.mlp(inputs, self.hidden_units)])

    def mlp(self, inputs: Any, units: Sequence[int], name: str = "hidden") -> Any:
        """Returns the last of the hidden layers of these widths, with ReLU."""
        hidden = inputs
        for index, width in enumerate(units):
            dense = keras.layers.Dense(width, activation="relu", name=f"{name}_{index}")
            hidden = dense(hidden)
            if self.dropout:
                drop = keras.layers.Dropout(
                    self.dropout, name=f"{name}_dropout_{index}"
                )
                hidden = drop(hidden)
        return hidden

    def _numbers(self) -> Any:
        numbers = [
            keras.layers.Reshape((feature.width or 1,))(self.inputs[feature.name])
            for feature in self.features
            if feature.is_dense
        ]
        if len(numbers) < 2:
            return numbers[0] if numbers else None
        return keras.layers.Concatenate(name="numbers")(numbers)


def to_widths(name: str, units: Sequence[int]) -> tuple[int, ...]:
    """Returns widths of layers as integers of Python.

    Raises:
        ValueError: If one is no positive integer.
    """
    if not all(is_integer(width) and width >= 1 for width in units):
        raise ValueError(
            f"`{name}` must be positive integers, or none. Received: {name}={units!r}."
        )
    return tuple(map(int, units))


def _check(features: Sequence[Feature], dim: int) -> None:
    names = _names(features)
    if len(set(names)) < len(names):
        raise ValueError(
            "`features` must have a name each, which no other has. Received: "
            f"features={names}."
        )
    if not is_integer(dim) or dim < 1:
        raise ValueError(f"`dim` must be a positive integer. Received: dim={dim!r}.")
    if all(feature.is_dense for feature in features):
        raise ValueError(
            "`features` must hold at least one feature of ids. Received: "
            f"features={names}, all dense."
        )


def _names(features: Sequence[Feature]) -> list[str]:
    return [feature.name for feature in features]


def _input(feature: Feature) -> Any:
    return keras.Input(
        feature.shape,
        dtype=feature.dtype,
        ragged=feature.is_bag,
        name=feature.name,
    )
