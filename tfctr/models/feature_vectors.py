"""How a model turns its id features into vectors: dynamic tables, or static ones."""

import abc
import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_layers import (
    DynamicEmbedding,
    Expiry,
    FeatureConfig,
    Storage,
    TableConfig,
)
from keras_layers.admission import (
    Admission,
    admission_from_config,
    admission_to_config,
)
from keras_layers.table_config import deserialize_optimizer, serialize_optimizer
from keras_layers.table_group import feature_seed
from tfctr.feature import Feature
from tfctr.models.static_embedding import StaticEmbedding


class FeatureVectors(abc.ABC):
    """Makes the embedding layers of a model."""

    @abc.abstractmethod
    def layer(
        self,
        name: str,
        features: Sequence[Feature],
        dim: int,
        is_linear: bool = False,
    ) -> Any:
        """Returns a layer from a dict of ids to a dict of vectors.

        A feature `(batch,)` or a bag `(batch, None)` becomes `(batch, dim)`, bags by
        their combiner; a feature `(batch, width)` becomes `(batch, width, dim)`.

        Args:
            name: String. Name of the layer and its table.
            features: `Feature`s of ids.
            dim: Integer. Width of the vectors.
            is_linear: Boolean. Whether they are the weights of a linear part, which
                start at zero.
        """


@keras.saving.register_keras_serializable(package="tfctr")
@dataclasses.dataclass(frozen=True)
class DynamicTables(FeatureVectors):
    """Vectors from tables that grow with the ids they meet.

    Args:
        optimizer: Of the tables; see `TableConfig`.
        storage: `Storage` of all tables. `None` means `TieredStorage()`.
        initializer: From what a row starts; see `TableConfig`. Linear weights start at
            zero.
        seed: Integer. Determines, with table, feature and id, the first weights of a
            row. `None` draws one that follows from `keras.utils.set_random_seed`.
        linear_optimizer: Of the tables of linear weights. `None` means `optimizer`.
        admission: Which ids get a row; see `TableConfig`.
        expiry: `Expiry`. Which rows are removed; see `TableConfig`.

    Example:

    >>> tables = DynamicTables(keras.optimizers.Adagrad(0.01))
    >>> tables.layer("vectors", [Feature("user", "int64")], dim=8).name
    'vectors'
    """

    optimizer: Any
    storage: Storage | None = None
    initializer: Any = "uniform"
    seed: int | None = None
    linear_optimizer: Any = None
    admission: Admission | None = None
    expiry: Expiry | None = None

    def __post_init__(self) -> None:
        if self.seed is None:
            # Drawn now, so that a model made from the config starts from equal rows.
            object.__setattr__(self, "seed", random.getrandbits(62))

    def layer(
        self,
        name: str,
        features: Sequence[Feature],
        dim: int,
        is_linear: bool = False,
    ) -> DynamicEmbedding:
        own = self.linear_optimizer if is_linear else None
        table = TableConfig(
            name,
            dim,
            self.optimizer if own is None else own,
            initializer="zeros" if is_linear else self.initializer,
            # Its own: rows of tables with one seed start alike, weight by weight.
            seed=feature_seed(self.seed or 0, name),
            admission=self.admission,
            expiry=self.expiry,
        )
        return DynamicEmbedding(
            {
                feature.name: FeatureConfig(
                    table,
                    combiner=feature.combiner if feature.is_bag else None,
                    namespace=feature.table,
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
            "linear_optimizer": self.linear_optimizer
            and serialize_optimizer(self.linear_optimizer),
            "admission": admission_to_config(self.admission),
            "expiry": self.expiry and dataclasses.asdict(self.expiry),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DynamicTables":
        read = keras.saving.deserialize_keras_object
        linear = config["linear_optimizer"]
        expiry = config.get("expiry")  # Models saved before had none.
        return cls(
            deserialize_optimizer(config["optimizer"]),
            read(config["storage"]),
            read(config["initializer"]),
            config["seed"],
            None if linear is None else deserialize_optimizer(linear),
            admission_from_config(config.get("admission")),
            expiry and Expiry(**expiry),
        )


@keras.saving.register_keras_serializable(package="tfctr")
@dataclasses.dataclass(frozen=True)
class StaticTables(FeatureVectors):
    """Vectors from `keras.layers.Embedding` over vocabularies known in advance.

    The baseline that dynamic tables are compared with. Ids outside the vocabulary share
    one vector.

    Args:
        vocabularies: By feature, its distinct ids.
        initializer: Keras initializer of the vectors, or its name. Linear weights start
            at zero.

    Example:

    >>> tables = StaticTables({"user": [3, 5]})
    >>> tables.layer("vectors", [Feature("user", "int64")], dim=8).num_rows
    3
    """

    vocabularies: Mapping[str, Any]
    initializer: Any = "uniform"

    def layer(
        self,
        name: str,
        features: Sequence[Feature],
        dim: int,
        is_linear: bool = False,
    ) -> StaticEmbedding:
        names = [feature.name for feature in features]
        for feature in features:
            if feature.table is not None or feature.combiner != "mean":
                raise ValueError(
                    "Static tables pool bags by their mean and share no vectors. "
                    f"Received: feature '{feature.name}' with table={feature.table!r} "
                    f"and combiner={feature.combiner!r}. Use dynamic tables."
                )
        if not set(names) <= set(self.vocabularies):
            raise ValueError(
                f"StaticTables needs a vocabulary for each of the features {names}. "
                f"Received: vocabularies of {list(self.vocabularies)}. Add those of "
                f"{[one for one in names if one not in self.vocabularies]}."
            )
        vocabularies = {
            name: np.asarray(self.vocabularies[name]).tolist() for name in names
        }
        initializer = "zeros" if is_linear else self.initializer
        return StaticEmbedding(vocabularies, dim, initializer, name=name)

    def get_config(self) -> dict[str, Any]:
        return {
            "vocabularies": {
                name: np.asarray(ids).tolist()
                for name, ids in self.vocabularies.items()
            },
            "initializer": keras.saving.serialize_keras_object(self.initializer),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "StaticTables":
        initializer = keras.saving.deserialize_keras_object(config["initializer"])
        return cls(config["vocabularies"], initializer)
