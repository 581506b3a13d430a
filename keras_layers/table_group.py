"""`TableGroup`: the features of a layer whose rows lie in one live table."""

import contextlib
import dataclasses
import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_layers.admission import BloomAdmission
from keras_layers.storage.storage import Storage, Table
from keras_layers.table_config import FeatureConfig, TableConfig
from tfctr_ops import SparseOptimizer


def feature_seed(table_seed: int, feature: str) -> int:
    """Returns 64 bits that depend on the seed and the name alone."""
    text = f"{table_seed}/{feature}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@dataclasses.dataclass(eq=False)
class TableGroup:
    """Tables that differ in name and seed alone, and so share lookups and updates.

    Tables with a size of their own, of a Bloom filter or in rows, are alone in theirs.

    Args:
        config: `TableConfig` of the first of them.
        features: Names of the features, `table/namespace`, and their numbers: 0, 1, 2
            and so on. Saved rows are matched by these names.
        seeds: The seed of each feature's table.
        inputs: The layer's features by name, and the numbers of each here: one, or one
            for each column.
    """

    config: TableConfig
    features: dict[str, int] = dataclasses.field(default_factory=dict)
    seeds: list[int] = dataclasses.field(default_factory=list)
    inputs: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    # Set when the layer is built; `step` is a Keras variable: how many updates the
    # layer has seen.
    table: Table = dataclasses.field(init=False)
    counts_samples: bool = dataclasses.field(init=False)
    step: Any = dataclasses.field(init=False)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def number_of(self, table: str, namespace: str, seed: int) -> int:
        """Returns the number of a feature, adding it if it is new."""
        name = f"{table}/{namespace}"
        if name not in self.features:
            self.features[name] = len(self.features)
            self.seeds.append(feature_seed(seed, namespace))
        return self.features[name]

    @property
    def shares_numbers(self) -> bool:
        """Whether equal ids of several features are one key."""
        return len(self.features) < sum(map(len, self.inputs.values()))

    def open(self, storage: Storage) -> None:
        """Makes the live table, outside of any function that is being traced."""
        with tf.init_scope():
            self.table = storage.open(self.config, self.seeds)
            self.counts_samples = self.config.counts_samples

    def one_at_a_time(self) -> contextlib.AbstractContextManager[Any]:
        """Lets no other thread come between the table and `step`.

        Eager calls only: while a graph is made there is nothing to guard yet, and when
        it runs no Python lock is in reach.
        """
        return self._lock if tf.executing_eagerly() else contextlib.nullcontext()

    def learning_rate(self) -> tf.Tensor:
        """Returns the learning rate of this step's update."""
        optimizer = self.config.optimizer
        if isinstance(optimizer, SparseOptimizer):
            return tf.constant(optimizer.learning_rate)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            fixed = optimizer.sparse_optimizer().learning_rate
            rate = getattr(optimizer, "learning_rate", fixed)
            rate = rate(self.step.value) if callable(rate) else rate
            return tf.cast(tf.convert_to_tensor(rate), tf.float32)
        # A schedule looks at the optimizer's own counter, which nobody else moves.
        optimizer.iterations.assign(self.step.value)
        return tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float32)


@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys of one lookup: int64 ids `(n,)` and int32 features `(p,)`, p divides n."""

    ids: tf.Tensor
    features: tf.Tensor

    @classmethod
    def concat(cls, parts: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> "Keys":
        """Returns the keys of all `parts`, in order."""
        if len(parts) == 1:
            return cls(*parts[0])
        features = [
            # A part names its features once; together each key needs its own. The
            # maximum is for parts without keys.
            tf.tile(features, [tf.size(ids) // tf.maximum(tf.size(features), 1)])
            for ids, features in parts
        ]
        return cls(tf.concat([ids for ids, _ in parts], 0), tf.concat(features, 0))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a feature's rows are: its group, and its numbers there.

    One number, or one for each column of a `per_column` feature.
    """

    group: int
    numbers: tuple[int, ...]


def group_tables(
    features: Mapping[str, FeatureConfig],
    columns: Mapping[str, int],
    seeds: Mapping[str, int],
) -> tuple[list[TableGroup], dict[str, Place]]:
    """Places features into as few live tables as their row widths allow.

    Tables share one when all but name and seed agree, the optimizer being the same
    object, so that its learning rate speaks for all of them.

    Args:
        features: `FeatureConfig` by name.
        columns: How many columns each `per_column` feature has.
        seeds: By name of the table.

    Returns:
        The groups, and the place of each feature.

    Raises:
        ValueError: If two different tables have one name.
    """
    named: dict[str, TableConfig] = {}
    groups: dict[Any, TableGroup] = {}
    places = {}
    for name, feature in features.items():
        table = feature.table
        if named.setdefault(table.name, table) != table:
            raise ValueError(
                f"Two different tables of one layer are named '{table.name}'. "
                f"Received: {named[table.name]} and {table}. Give each table a name of "
                "its own, or use one TableConfig object for both features."
            )
        key = (
            table.dim,
            id(table.optimizer),
            table.row_initializer(),
            table.default_row,
            table.bad_gradients,
            table.admission,
            table.expiry,
            # What is a size of one table cannot be that of several together.
            table.name if _has_size(table) else None,
        )
        group = groups.setdefault(key, TableGroup(table))
        namespace = feature.namespace or name
        if feature.per_column:
            prefix = f"{namespace}/" if namespace else ""
            spaces = [f"{prefix}{column}" for column in range(columns[name])]
        else:
            spaces = [namespace]
        numbers = [
            group.number_of(table.name, space, seeds[table.name]) for space in spaces
        ]
        group.inputs[name] = tuple(numbers)
        index = list(groups.values()).index(group)
        places[name] = Place(index, tuple(numbers))
    return list(groups.values()), places


def _has_size(table: TableConfig) -> bool:
    is_sized = isinstance(table.admission, BloomAdmission)
    return is_sized or (table.expiry is not None and table.expiry.max_rows is not None)


def find_feature(
    wanted: str | int | None,
    features: Mapping[str, FeatureConfig],
    places: Mapping[str, Place],
    groups: Sequence[TableGroup],
) -> tuple[TableGroup, int]:
    """Returns where the rows of a feature are, and its number there.

    Args:
        wanted: Name of the feature, or number of the column, or both as
            `"name/column"`; or a name that `DynamicEmbedding.export` gives. `None` if
            there is only one.
        features: `FeatureConfig` by name.
        places: Of each feature.
        groups: All of them.

    Raises:
        ValueError: If there is no such feature.
    """
    numbers = {}
    for name, place in places.items():
        columns = features[name].per_column
        for column, number in enumerate(place.numbers):
            path = [name] * (name != "") + [str(column)] * columns
            numbers["/".join(path)] = (groups[place.group], number)
    # As `export` names them; features of one namespace are one there.
    exported = {
        name: (group, number)
        for group in groups
        for name, number in group.features.items()
    }
    name = next(iter(numbers)) if wanted is None and len(numbers) == 1 else str(wanted)
    if name not in numbers | exported:
        raise ValueError(
            f"`feature` must name one of the features {list(numbers)}. "
            f"Received: feature={wanted!r}."
        )
    return (exported | numbers)[name]
