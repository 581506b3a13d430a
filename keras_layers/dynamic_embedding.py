"""`DynamicEmbedding`: ids to vectors, from tables that grow with the ids."""

import pathlib
import random
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers import table_saving, table_snapshots
from keras_layers.feature_ids import (
    FlatIds,
    check_id_dtype,
    check_structure,
    flatten_feature,
    num_columns,
    padding_mask,
    to_int64,
)
from keras_layers.frozen_tables import are_frozen
from keras_layers.layer_features import default_name, named_features, tables_of
from keras_layers.storage.byte_size import parse_bytes
from keras_layers.storage.storage import Forecast, Storage
from keras_layers.storage.tiered_storage import TieredStorage
from keras_layers.table_config import FeatureConfig, TableConfig
from keras_layers.table_group import (
    Keys,
    Place,
    TableGroup,
    find_feature,
    group_tables,
)
from keras_layers.table_lookup import TableLookup, group_lookups

_built: "weakref.WeakSet[DynamicEmbedding]" = weakref.WeakSet()


@keras.saving.register_keras_serializable(package="tfctr")
class DynamicEmbedding(keras.layers.Layer):
    """Turns ids into vectors, from tables that grow with the ids they meet.

    Use it where `keras.layers.Embedding` would need a vocabulary. Any int64 or string
    is a legal id; nothing is hashed into a fixed number of buckets. Rows are made when
    an id is first seen in training, and moved by the table's own optimizer during the
    backward pass; the optimizer of `model.compile` never sees them.

    Outside training (`training=False`, `evaluate`, `predict`), and while
    `trainable=False`, the layer only reads: ids that were never trained read the
    table's default row. As with any Keras layer, compile the model again after a change
    of `trainable`.

    All calls of the layer in one training step make one update of the table. A gradient
    tape moves the table even if it is asked for the gradients of other variables only:
    say `training=False` or `tf.GradientTape(watch_accessed_variables=False)` there.

    Args:
        features: What is looked up. A `TableConfig`: one table, and each column of the
            ids is a feature of its own, so that equal ids in different columns have
            different rows. A `FeatureConfig`: one feature, whatever the shape of its
            ids. A dict of `FeatureConfig`: inputs and outputs are dicts with its keys.
        storage: `Storage`. `None` means `TieredStorage()`.
        combiner: String. With a `TableConfig`: the ids are one bag per example, pooled
            by `"sum"`, `"mean"` or `"sqrtn"`. `None` keeps one vector per id.
        save_limit: Bytes, such as `"1GB"`. Saving through Keras (`model.save`,
            `save_weights`) raises beyond it, since the rows pass through memory whole.

    Call arguments:
        inputs: Ids, integers or strings: `(batch,)` or `(batch, features)` for a
            `TableConfig`; any shape for a feature. With a combiner also ragged or
            sparse, `(batch, None)`.
        weights: Float tensor laid out like `inputs`, to weigh the ids of bags; a dict
            for dict inputs. `None` means ones.

    Returns:
        Float tensor of shape `(*ids.shape, dim)`, or `(*ids.shape[:-1], dim)` with a
        combiner; a dict of them for dict inputs. Empty bags and padding are zeros.

    Raises:
        TypeError: If `features` are not what they may be.
        ValueError: If ids are floats, shapes do not fit, the layer's dtype is float16,
            its policy or the global one is `mixed_float16` when it is made, or it is
            used under a `tf.distribute` strategy.
        tf.errors.ResourceExhaustedError: If a training step needs more memory than the
            storage has, and no row may leave.
        tf.errors.InvalidArgumentError: If a gradient is NaN, infinite or beyond 1e12,
            unless the table skips such steps.
        tf.errors.FailedPreconditionError: If weights were set without the rows, or a
            call is asked for its gradient twice.

    Example:

    >>> ads = TableConfig("ads", dim=4, optimizer=keras.optimizers.Adam(1e-3))
    >>> layer = DynamicEmbedding(ads)
    >>> layer(np.array([[3, -7], [2**62, 3]]), training=True).shape
    TensorShape([2, 2, 4])
    """

    def __init__(
        self,
        features: TableConfig | FeatureConfig | dict[str, FeatureConfig],
        storage: Storage | None = None,
        combiner: str | None = None,
        save_limit: int | str = "1GB",
        **kwargs: Any,
    ) -> None:
        named = named_features(features, combiner)
        self.storage = storage or TieredStorage()
        kwargs.setdefault("name", default_name(named, self.storage))
        # Bags are weighed and pooled in float32, whatever the policy.
        super().__init__(**{**kwargs, "autocast": False})
        # Keras scales the loss of a model by the global policy, not by its layers'.
        policies = (self.dtype_policy.name, keras.config.dtype_policy().name)
        if self.compute_dtype == "float16" or "mixed_float16" in policies:
            raise ValueError(
                f"Layer '{self.name}' cannot train in float16, whose loss scaling "
                "would scale the rows' gradients too, by a factor the table cannot "
                f"see. Received: dtype policy '{policies[0]}', global policy "
                f"'{policies[1]}'. Use 'mixed_bfloat16', which needs no loss scaling."
            )
        # One form inside: a dict of features, under the key "" if there is but one.
        self._single = not isinstance(features, dict)
        self.features = named
        self.save_limit = save_limit
        parse_bytes("save_limit", save_limit)
        self.supports_jit = False  # The store is no XLA op.
        self.supports_masking = True
        # Drawn now, so that a copy made from the config starts from the same rows.
        self._seeds = {
            table.name: random.getrandbits(62) if table.seed is None else table.seed
            for table in tables_of(self.features)
        }
        self._groups: list[TableGroup] = []
        self._lookups: list[TableLookup] = []
        self._places: dict[str, Place] = {}

    # Building.

    def build(self, input_shape: Any) -> None:
        self._refuse_strategies()
        check_structure(input_shape, self._single, self._owner(""))
        shapes = {"": input_shape} if self._single else input_shape
        self._check_keys(shapes, {})
        # Training asks for the gradient of this weight, and thereby for the update.
        # First, since Keras refuses it to a layer that is built already.
        self.anchor = self.add_weight(shape=(), initializer="zeros", name="anchor")
        self._groups, self._places = group_tables(
            self.features,
            {
                name: num_columns(shapes[name], self._owner(name))
                for name, config in self.features.items()
                if config.per_column
            },
            self._seeds,
        )
        for index, group in enumerate(self._groups):
            group.open(self.storage)
            group.step = self.add_weight(
                shape=(),
                dtype="int64",
                initializer="zeros",
                trainable=False,
                name=f"step_{index}",
            )
        self._lookups = group_lookups(self.storage, self._groups)
        _built.add(self)
        self.built = True

    # Calling.

    def call(
        self, inputs: Any, weights: Any = None, training: bool | None = None
    ) -> Any:
        self._refuse_strategies()
        outputs = self._look_up(self._flatten(inputs, weights), training)
        return outputs[""] if self._single else outputs

    def prefetch(self, inputs: Any, unless_cached: bool = False) -> None:
        """Brings the rows of a batch to come up into memory; changes no result.

        `tfctr.data.lookahead` calls it for a whole data set.

        Args:
            inputs: As for the call.
            unless_cached: Boolean. Whether to do nothing while the page cache of the
                system has nearly all rows that are read.
        """
        flat = self._flatten(inputs, None)
        for lookup in self._lookups:
            lookup.prefetch(flat, unless_cached)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        inputs = {"": inputs} if self._single else inputs
        masks = {
            name: padding_mask(inputs[name], config)
            for name, config in self.features.items()
        }
        return masks[""] if self._single else masks

    def compute_output_shape(self, input_shape: Any) -> Any:
        shapes = {"": input_shape} if self._single else input_shape
        outputs = {}
        for name, config in self.features.items():
            if config.per_column:
                num_columns(shapes[name], self._owner(name))
            kept = shapes[name] if config.combiner is None else shapes[name][:-1]
            outputs[name] = (*kept, config.table.dim)
        return outputs[""] if self._single else outputs

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: bool | None = None
    ) -> Any:
        # Without running `call` on placeholders, which would make rows.
        tensors = {"": inputs} if self._single else inputs
        if not self._single:
            self._check_keys(tensors, {} if weights is None else weights)
        for name, tensor in tensors.items():
            check_id_dtype(tensor.dtype, self._owner(name))
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        shapes = self.compute_output_shape(shapes[""] if self._single else shapes)
        outputs = {
            name: keras.KerasTensor(shape, self.compute_dtype)
            for name, shape in ({"": shapes} if self._single else shapes).items()
        }
        return outputs[""] if self._single else outputs

    # The tables.

    @property
    def tables(self) -> dict[str, Any]:
        """The live tables, by the name of the first `TableConfig` of each."""
        return {group.config.name: group.table for group in self._groups}

    @property
    def groups(self) -> tuple[TableGroup, ...]:
        """The live tables, with what lies in them."""
        return tuple(self._groups)

    @property
    def seeds(self) -> dict[str, int]:
        """The seed of each `TableConfig`, by its name: of it, the first rows follow."""
        return dict(self._seeds)

    def size(self) -> int:
        """Returns how many keys were trained or written, over all tables."""
        return sum(group.table.size() for group in self._groups)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Returns counts of what each table holds and did: `EmbeddingStore.stats`."""
        return {name: table.stats() for name, table in self.tables.items()}

    def forecast(self, num_keys: int) -> dict[str, Forecast]:
        """Returns what each table would need to hold `num_keys` keys."""
        return {
            table.name: self.storage.forecast(table, num_keys)
            for table in tables_of(self.features)
        }

    def read_rows(self, ids: Any, feature: str | int | None = None) -> tf.Tensor:
        """Returns the vectors of ids, as prediction would read them.

        Args:
            ids: Integer or string tensor of shape `(n,)`.
            feature: Name of the feature, or number of the column, or both as
                `"name/column"`; or a name that `tfctr.export.vectors` gave. `None` if
                there is only one.

        Returns:
            float32 tensor of shape `(n, dim)`.
        """
        group, keys = self._keys_of(ids, feature)
        return group.table.read(keys.ids, keys.features)

    def write_rows(
        self, ids: Any, vectors: Any, feature: str | int | None = None
    ) -> None:
        """Sets the vectors of ids, for example to pretrained ones.

        Args:
            ids: Integer or string tensor of shape `(n,)`. Of equal ids, the last wins.
            vectors: Float tensor of shape `(n, dim)`.
            feature: As for `read_rows`.
        """
        group, keys = self._keys_of(ids, feature)
        vectors = tf.convert_to_tensor(vectors, tf.float32)
        expected = (keys.ids.shape[0], group.config.dim)
        if tuple(vectors.shape) != expected:
            raise ValueError(
                f"`vectors` must have one row of dim={group.config.dim} per id: shape "
                f"{expected}. Received: vectors.shape={tuple(vectors.shape)}."
            )
        group.table.write(keys.ids, keys.features, vectors)

    def expire(self) -> int:
        """Removes rows now, by the `Expiry` of each table, and returns how many.

        Raises:
            ValueError: If no table has one, or the layer is not built.
        """
        groups = [group for group in self._groups if group.config.expiry is not None]
        if not groups:
            raise ValueError(
                f"Layer '{self.name}' expects a built table with a rule of expiry. "
                f"Received: the tables {list(self.tables)}, none with one. Give them "
                "TableConfig(expiry=Expiry(...)), and call the layer once."
            )
        return sum(group.table.expire() for group in groups)

    def export(self, batch_size: int) -> Iterator[tuple[str, Any, Any]]:
        """Yields feature name, ids `(n,)` and vectors `(n, dim)` of all known ids."""
        for group in self._groups:
            names = list(group.features)
            for keys, vectors in group.table.export(batch_size):
                for number in np.unique(keys[:, 0]):
                    rows = keys[:, 0] == number
                    order = np.argsort(keys[rows, 1])
                    yield names[number], keys[rows, 1][order], vectors[rows][order]

    # Saving.

    def begin_snapshot(self, directory: Any, scratch: Any) -> None:
        """Begins a snapshot of all tables: of this moment, which takes next to no time.

        What admission has counted is copied while training waits, which takes the
        longer the more ids wait, or a `BloomAdmission` expects.

        Args:
            directory: Path, which must not exist.
            scratch: Path of a directory on the same file system, where files stay that
                snapshots share.
        """
        table_snapshots.begin_snapshots(
            self._groups, pathlib.Path(directory), pathlib.Path(scratch)
        )

    def finish_snapshot(self) -> dict[str, int]:
        """Writes the snapshot that was begun; training may go on in other threads.

        Returns:
            A dict of `rows`, `rows_written` of them now, `bytes` and `linked_bytes`.
        """
        return table_snapshots.finish_snapshots(self._groups, self._seeds)

    def restore_snapshot(self, directory: Any) -> None:
        """Replaces all rows, counters and seeds by those of a snapshot.

        Raises:
            ValueError: If it is of other tables. Nothing has changed.
            tf.errors.UnavailableError: If there is none of a table.
            tf.errors.DataLossError: If it is damaged. If that is where rows are, their
                table is empty.
        """
        table_snapshots.restore_snapshots(
            self._groups, pathlib.Path(directory), self._seeds, self.name
        )

    def count_params(self) -> int:
        """Returns how many weights the tables hold now; `summary` shows it."""
        return sum(group.table.size() * group.config.dim for group in self._groups)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        config.update(
            table_saving.features_to_config(
                self.features[""] if self._single else self.features,
                self._seeds,
                self.name,
            )
        )
        # As it is: Keras then notes that layers share it, and so its budget.
        config["storage"] = self.storage
        config["save_limit"] = self.save_limit
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DynamicEmbedding":
        config = dict(config)
        features = table_saving.features_from_config(config)
        storage = config.pop("storage")
        if not isinstance(storage, Storage):
            storage = keras.saving.deserialize_keras_object(storage)
        return cls(features, storage=storage, **config)

    def save_own_variables(self, store: Any) -> None:
        table_saving.save_groups(self._groups, store, self.save_limit, self.name)

    def load_own_variables(self, store: Any) -> None:
        table_saving.load_groups(self._groups, store, self.name)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        raise ValueError(table_saving.refusal(save_type, self.name))

    # Details.

    def _refuse_strategies(self) -> None:
        if tf.distribute.has_strategy():
            strategy = type(tf.distribute.get_strategy()).__name__
            raise ValueError(
                f"Layer '{self.name}' does not run under a tf.distribute strategy: "
                "each replica would move the rows by itself. Received: a scope of "
                f"{strategy}. Leave the scope; one process uses all its cores."
            )

    def _owner(self, feature: str) -> str:
        """Names a feature in messages."""
        if feature == "":
            return f"Layer '{self.name}'"
        return f"Feature '{feature}' of layer '{self.name}'"

    def _check_keys(self, inputs: Any, weights: Any) -> None:
        if not isinstance(inputs, dict) or not isinstance(weights, dict):
            raise ValueError(
                f"Layer '{self.name}' expects a dict of ids by feature, and a dict of "
                f"weights or none. Received: inputs of type {type(inputs).__name__}, "
                f"weights of type {type(weights).__name__}."
            )
        if set(inputs) != set(self.features) or not set(weights) <= set(self.features):
            raise ValueError(
                f"Layer '{self.name}' expects a dict with the keys "
                f"{sorted(self.features)}, and weights for some of them. Received: "
                f"inputs {sorted(inputs)}, weights {sorted(weights)}."
            )

    def _flatten(self, inputs: Any, weights: Any) -> dict[str, FlatIds]:
        if self._single:
            inputs, weights = {"": inputs}, {"": weights}
        weights = {} if weights is None else weights
        self._check_keys(inputs, weights)
        return {
            name: flatten_feature(
                inputs[name],
                weights.get(name),
                config,
                self._places[name].numbers,
                self._owner(name),
            )
            for name, config in self.features.items()
        }

    def _look_up(
        self, flat: dict[str, FlatIds], training: bool | None
    ) -> dict[str, Any]:
        """Looks every group up once, and hands each feature its rows."""
        outputs: dict[str, Any] = {}
        for lookup in self._lookups:
            if not self.trainable or are_frozen():
                outputs |= lookup.read(flat)
                continue
            anchor = tf.convert_to_tensor(self.anchor.value)
            if training is None:
                outputs |= lookup.read_untold(anchor, flat, self.name)
            else:
                outputs |= (
                    lookup.lookup(anchor, flat) if training else lookup.read(flat)
                )
        # Pooled first: in float32, whatever the policy.
        return {name: tf.cast(outputs[name], self.compute_dtype) for name in flat}

    def _keys_of(self, ids: Any, feature: str | int | None) -> tuple[TableGroup, Keys]:
        if not self.built:
            raise ValueError(
                f"Layer '{self.name}' expects to be built before its rows are read or "
                "written. Received: a layer without a table yet. Call it once, or "
                "build the model."
            )
        group, number = find_feature(feature, self.features, self._places, self._groups)
        ids = tf.convert_to_tensor(ids)
        if ids.shape == [0]:  # An empty list, for TensorFlow one of floats.
            ids = tf.zeros([0], tf.int64)
        flat = tf.reshape(to_int64(ids, self._owner("")), [-1])
        return group, Keys(flat, tf.constant([number], tf.int32))


def layers_of(model: keras.Model) -> list[DynamicEmbedding]:
    """Returns the built `DynamicEmbedding` layers of a model, however deep, by name."""
    variables = {id(variable) for variable in model.variables}
    found = [layer for layer in _built if id(layer.anchor) in variables]
    return sorted(found, key=lambda layer: layer.name)


def is_anchor(variable: Any) -> bool:
    """Returns whether a variable is the one by which some layer's rows are moved."""
    return any(layer.anchor is variable for layer in _built)
