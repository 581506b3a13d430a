"""`StaticEmbedding`: `keras.layers.Embedding` over vocabularies known in advance."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_layers.cross_network import distinct_draws


@keras.saving.register_keras_serializable(package="tfctr")
class StaticEmbedding(keras.layers.Layer):
    """Looks ids up in a vocabulary, and their places in a table.

    Args:
        vocabularies: By feature, the list of its ids, integers or strings.
        dim: Integer. Width of the vectors.
        initializer: Keras initializer of the tables, or its name. Every table draws its
            own numbers.

    Raises:
        ValueError: If a vocabulary is empty, or an id stands in it twice.

    Call arguments:
        inputs: Dict of ids `(batch,)`, `(batch, width)` or ragged `(batch, None)`.

    Returns:
        Dict of vectors: `(batch, dim)`, or `(batch, width, dim)`. Bags give the mean of
        their vectors, empty ones zeros.

    Example:

    >>> layer = StaticEmbedding({"user": [3, 5]}, dim=4)
    >>> layer({"user": tf.constant([5, 3, 9])})["user"].shape
    TensorShape([3, 4])
    """

    def __init__(
        self,
        vocabularies: Mapping[str, Sequence[Any]],
        dim: int,
        initializer: Any = "uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocabularies = {name: list(ids) for name, ids in vocabularies.items()}
        self.dim = dim
        self.initializer = keras.initializers.get(initializer)
        draw = distinct_draws(self.initializer)
        self._lookups = {}
        self._tables = {}
        for name, ids in self.vocabularies.items():
            if not ids:
                raise ValueError(
                    f"The vocabulary of feature '{name}' must hold at least one id. "
                    f"Received: vocabularies={{'{name}': []}}. Leave the feature out."
                )
            repeated = [one for one, count in Counter(ids).items() if count > 1]
            if repeated:
                raise ValueError(
                    f"The vocabulary of feature '{name}' must hold each id once. "
                    f"Received: {repeated[0]!r} twice or more. Leave out what repeats: "
                    "sorted(set(ids))."
                )
            is_text = isinstance(ids[0], str)
            kind = keras.layers.StringLookup if is_text else keras.layers.IntegerLookup
            self._lookups[name] = kind(vocabulary=ids, name=f"{name}_lookup")
            # One place more, for ids outside.
            self._tables[name] = keras.layers.Embedding(
                len(ids) + 1, dim, draw, name=f"{name}_table"
            )

    @property
    def tables(self) -> dict[str, keras.layers.Embedding]:
        """The table of each feature: all columns of a feature share one."""
        return dict(self._tables)

    @property
    def num_rows(self) -> int:
        """How many rows all tables have."""
        return sum(table.input_dim for table in self._tables.values())

    def build(self, input_shape: Any) -> None:
        for table in self._tables.values():
            table.build(None)
        self.built = True

    def call(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: self._vectors(name, ids) for name, ids in inputs.items()}

    def compute_output_spec(self, inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = {}
        for name, ids in inputs.items():
            # Not `ids.ragged`: `clone_model` forgets that an input is ragged.
            is_bag = len(ids.shape) == 2 and ids.shape[1] is None
            shape = (*(ids.shape[:1] if is_bag else ids.shape), self.dim)
            outputs[name] = keras.KerasTensor(shape, self.compute_dtype)
        return outputs

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocabularies": self.vocabularies,
            "dim": self.dim,
            "initializer": keras.initializers.serialize(self.initializer),
        }

    def _vectors(self, name: str, ids: Any) -> Any:
        if not isinstance(ids, tf.RaggedTensor):
            return self._tables[name](self._lookups[name](ids))
        # As bags, not flat: `CowClip` sees which example each id is of.
        places = ids.with_flat_values(self._lookups[name](ids.flat_values))
        bags = self._tables[name](places)
        count = tf.cast(ids.row_lengths(), self.compute_dtype)[:, tf.newaxis]
        return tf.math.divide_no_nan(tf.reduce_sum(bags, axis=1), count)
