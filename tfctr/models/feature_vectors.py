"""How a model turns its id features into vectors: dynamic tables, or static ones."""

import abc
import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers import (
    DynamicEmbedding,
    FeatureConfig,
    Storage,
    TableConfig,
)
from keras_layers.table_config import deserialize_optimizer, serialize_optimizer
from keras_layers.table_group import feature_seed
from tfctr.feature import Feature


class FeatureVectors(abc.ABC):
    """Makes the embedding layers of a model."""

    @abc.abstractmethod
    def layer(self, name: str, features: Sequence[Feature], dim: int) -> Any:
        """Returns a layer from a dict of ids to a dict of vectors.

        A feature `(batch,)` or a bag `(batch, None)` becomes `(batch, dim)`, bags by
        their mean; a feature `(batch, width)` becomes `(batch, width, dim)`.

        Args:
            name: String. Name of the layer and its table.
            features: `Feature`s of ids.
            dim: Integer. Width of the vectors.
        """


@keras.saving.register_keras_serializable(package="tfctr")
@dataclasses.dataclass(frozen=True)
class DynamicTables(FeatureVectors):
    """Vectors from tables that grow with the ids they meet.

    Args:
        optimizer: Of the tables; see `TableConfig`.
        storage: `Storage` of all tables. `None` means `TieredStorage()`.
        initializer: From what a row starts; see `TableConfig`.
        seed: Integer. Determines, with table, feature and id, the first weights of a
            row. `None` draws one that follows from `keras.utils.set_random_seed`.

    Example:

    >>> tables = DynamicTables(keras.optimizers.Adagrad(0.01))
    >>> tables.layer("vectors", [Feature("user", "int64")], dim=8).name
    'vectors'
    """

    optimizer: Any
    storage: Storage | None = None
    initializer: Any = "uniform"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is None:
            # Drawn now, so that a model made from the config starts from equal rows.
            object.__setattr__(self, "seed", random.getrandbits(62))

    def layer(
        self, name: str, features: Sequence[Feature], dim: int
    ) -> DynamicEmbedding:
        table = TableConfig(
            name,
            dim,
            self.optimizer,
            initializer=self.initializer,
            # Its own: rows of tables with one seed start alike, weight by weight.
            seed=feature_seed(self.seed or 0, name),
        )
        return DynamicEmbedding(
            {
                feature.name: FeatureConfig(
                    table,
                    combiner="mean" if feature.is_bag else None,
                    per_column=feature.width is not None,
                )
                for feature in features
            },
            storage=self.storage,
            name=name,
        )

    def get_config(self) -> dict[str, Any]:
        return {
            "optimizer": serialize_optimizer(self.optimizer),
            "storage": keras.saving.serialize_keras_object(self.storage),
            "initializer": keras.saving.serialize_keras_object(self.initializer),
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DynamicTables":
        read = keras.saving.deserialize_keras_object
        return cls(
            deserialize_optimizer(config["optimizer"]),
            read(config["storage"]),
            read(config["initializer"]),
            config["seed"],
        )


@keras.saving.register_keras_serializable(package="tfctr")
@dataclasses.dataclass(frozen=True)
class StaticTables(FeatureVectors):
    """Vectors from `keras.layers.Embedding` over vocabularies known in advance.

    The baseline that dynamic tables are compared with. Ids outside the vocabulary share
    one vector.

    Args:
        vocabularies: By feature, its distinct ids.

    Example:

    >>> tables = StaticTables({"user": [3, 5]})
    >>> tables.layer("vectors", [Feature("user", "int64")], dim=8).num_rows
    3
    """

    vocabularies: Mapping[str, Any]

    def layer(
        self, name: str, features: Sequence[Feature], dim: int
    ) -> "StaticEmbedding":
        names = [feature.name for feature in features]
        if not set(names) <= set(self.vocabularies):
            raise ValueError(
                f"StaticTables needs a vocabulary for each of the features {names}. "
                f"Received: vocabularies of {list(self.vocabularies)}."
            )
        vocabularies = {
            name: np.asarray(self.vocabularies[name]).tolist() for name in names
        }
        return StaticEmbedding(vocabularies, dim, name=name)

    def get_config(self) -> dict[str, Any]:
        return {
            "vocabularies": {
                name: np.asarray(ids).tolist()
                for name, ids in self.vocabularies.items()
            }
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "StaticTables":
        return cls(**config)


@keras.saving.register_keras_serializable(package="tfctr")
class StaticEmbedding(keras.layers.Layer):
    """Looks ids up in a vocabulary, and their places in a table.

    Args:
        vocabularies: By feature, the list of its ids, integers or strings.
        dim: Integer. Width of the vectors.

    Raises:
        ValueError: If a vocabulary is empty.

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
        self, vocabularies: Mapping[str, Sequence[Any]], dim: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.vocabularies = {name: list(ids) for name, ids in vocabularies.items()}
        self.dim = dim
        self._lookups = {}
        self._tables = {}
        for name, ids in self.vocabularies.items():
            if not ids:
                raise ValueError(
                    f"The vocabulary of feature '{name}' must hold at least one id. "
                    f"Received: vocabularies={{'{name}': []}}. Leave the feature out."
                )
            is_text = isinstance(ids[0], str)
            kind = keras.layers.StringLookup if is_text else keras.layers.IntegerLookup
            self._lookups[name] = kind(vocabulary=ids, name=f"{name}_lookup")
            # One place more, for ids outside.
            self._tables[name] = keras.layers.Embedding(
                len(ids) + 1, dim, name=f"{name}_table"
            )

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
        config = super().get_config()
        return {**config, "vocabularies": self.vocabularies, "dim": self.dim}

    def _vectors(self, name: str, ids: Any) -> Any:
        if not isinstance(ids, tf.RaggedTensor):
            return self._tables[name](self._lookups[name](ids))
        places = self._lookups[name](ids.flat_values)
        bags = ids.with_flat_values(self._tables[name](places))
        count = tf.cast(ids.row_lengths(), self.compute_dtype)[:, tf.newaxis]
        return tf.math.divide_no_nan(tf.reduce_sum(bags, axis=1), count)
