"""How tables pass through Keras' own saving, and what is refused instead of lost."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_layers.storage.byte_size import format_bytes, parse_bytes
from keras_layers.table_config import (
    FeatureConfig,
    TableConfig,
    deserialize_optimizer,
    serialize_optimizer,
)
from keras_layers.table_group import TableGroup
from tfctr_ops import RowInitializer, Rows

_FIELDS = ("ids", "features", "values", "last_steps", "counts")


def save_groups(
    groups: Sequence[TableGroup], store: Any, save_limit: int | str, layer: str
) -> None:
    """Writes rows, slots, counters and steps into a Keras weight store.

    Raises:
        ValueError: If the rows exceed `save_limit`, or do not belong to the layer's
            other weights.
    """
    _check_size(groups, save_limit, layer)
    for index, group in enumerate(groups):
        step = _check_step(group, layer)
        rows = group.table.save_rows()
        arrays = Rows(*(np.asarray(column) for column in rows))
        # By key, so that equal tables give equal files.
        order = np.lexsort((arrays.ids, arrays.features))
        for field, column in zip(_FIELDS, arrays, strict=True):
            store[f"table_{index}_{field}"] = column[order]
        store[f"table_{index}_step"] = np.asarray(step, np.int64)
        names = json.dumps(group.features).encode()
        store[f"table_{index}_names"] = np.frombuffer(names, np.uint8)


def load_groups(groups: Sequence[TableGroup], store: Any, layer: str) -> None:
    """Replaces the rows of each group by those of a Keras weight store.

    Rows are matched by the names of their features, so a layer whose features come in
    another order gets its own rows.

    Raises:
        ValueError: If the saved tables do not fit.
    """
    saved: list[tuple[list[str], Rows, int]] = []
    while f"table_{len(saved)}_step" in store:
        saved.append(_read_table(store, len(saved)))
    fitting = [
        [table for table in saved if set(table[0]) & set(group.features)]
        for group in groups
    ]
    if len(saved) != len(groups) or any(len(tables) != 1 for tables in fitting):
        raise ValueError(
            f"Layer '{layer}' expects saved tables with the features "
            f"{[group.features for group in groups]}. Received: tables with the "
            f"features {[names for names, _, _ in saved]}. The file was saved from a "
            "layer whose tables differ, or this layer is not built yet: call it once."
        )
    # All are checked before the first is replaced.
    for group, [(names, rows, _)] in zip(groups, fitting, strict=True):
        _check_columns(rows, names, group, layer)
    for group, [(names, rows, step)] in zip(groups, fitting, strict=True):
        numbers = np.array([group.features.index(name) for name in names], np.int32)
        group.table.restore_rows(rows._replace(features=numbers[rows.features]), step)
        group.step.assign(step)


def _read_table(store: Any, index: int) -> tuple[list[str], Rows, int]:
    """Returns the names of the features, the rows and the step."""
    columns = [np.asarray(store[f"table_{index}_{field}"]) for field in _FIELDS]
    names = json.loads(bytes(np.asarray(store[f"table_{index}_names"])).decode())
    return names, Rows(*columns), int(np.asarray(store[f"table_{index}_step"]))


def features_to_config(
    features: FeatureConfig | dict[str, FeatureConfig], seeds: dict[str, int]
) -> dict[str, Any]:
    """Returns a JSON-able description from which equal tables can be made.

    Optimizers and tables stand in lists of their own, so that what was one object for
    several features is one object again.
    """
    named = features if isinstance(features, dict) else {"": features}
    optimizers: list[Any] = []
    tables: list[TableConfig] = []
    for config in named.values():
        if not any(config.table is table for table in tables):
            tables.append(config.table)
        if not any(config.table.optimizer is known for known in optimizers):
            optimizers.append(config.table.optimizer)
    return {
        "optimizers": [serialize_optimizer(optimizer) for optimizer in optimizers],
        "tables": [
            {
                "name": table.name,
                "dim": table.dim,
                "optimizer": _index(optimizers, table.optimizer),
                "initializer": dataclasses.asdict(table.row_initializer()),
                "seed": seeds[table.name],
                "default_row": table.default_row and list(table.default_row),
                "bad_gradients": table.bad_gradients,
            }
            for table in tables
        ],
        "features": {
            name: {
                "table": _index(tables, config.table),
                "combiner": config.combiner,
                "padding_id": config.padding_id,
                "namespace": config.namespace,
                "per_column": config.per_column,
            }
            for name, config in named.items()
        },
    }


def features_from_config(
    config: dict[str, Any],
) -> FeatureConfig | dict[str, FeatureConfig]:
    """Takes what `features_to_config` added out of `config`, and makes it again."""
    optimizers = [deserialize_optimizer(one) for one in config.pop("optimizers")]
    tables = [
        TableConfig(
            **{
                **table,
                "optimizer": optimizers[table["optimizer"]],
                "initializer": RowInitializer(**table["initializer"]),
                "default_row": table["default_row"] and tuple(table["default_row"]),
            }
        )
        for table in config.pop("tables")
    ]
    named = {
        name: FeatureConfig(**{**feature, "table": tables[feature["table"]]})
        for name, feature in config.pop("features").items()
    }
    return named.get("", named)


def refusal(save_type: str, layer: str) -> str:
    """Returns what to say when TensorFlow wants to save the layer by its variables."""
    if save_type == "savedmodel":
        return (
            f"Layer '{layer}' cannot be exported by Model.export or "
            "tf.saved_model.save: its rows are no TensorFlow variables, and the file "
            "would be without them. tfctr.export takes them out: "
            "tfctr.export.vectors(layer)."
        )
    return (
        f"Layer '{layer}' cannot be saved by tf.train.Checkpoint: its rows are no "
        "TensorFlow variables, and the checkpoint would be without them. Use "
        "model.save_weights, or model.save, which carry them."
    )


def _index(objects: Sequence[Any], wanted: Any) -> int:
    return next(i for i, known in enumerate(objects) if known is wanted)


def _check_size(
    groups: Sequence[TableGroup], save_limit: int | str, layer: str
) -> None:
    size = 0
    for group in groups:
        stats = group.table.stats()
        size += stats["known_rows"] * stats["row_bytes"]
    if size > parse_bytes("save_limit", save_limit):
        raise ValueError(
            f"Layer '{layer}' holds {format_bytes(size)} of rows, more than Keras' own "
            f"saving should carry: save_limit={save_limit!r}. The rows pass through "
            "memory whole and into one file. Raise it if that fits: "
            f'DynamicEmbedding(..., save_limit="{format_bytes(2 * size)}").'
        )


def _check_step(group: TableGroup, layer: str) -> int:
    step = int(group.table.stats()["step"])
    expected = int(group.step.numpy())
    if step != expected:
        raise ValueError(
            f"Layer '{layer}' cannot be saved: the rows of table "
            f"'{group.config.name}' are those after {step} updates, but the layer's "
            f"weights are those after {expected}. The weights were set without the "
            "rows, as by `set_weights` or EarlyStopping(restore_best_weights=True): "
            "neither can carry a table."
        )
    return step


def _check_columns(
    rows: Rows, names: Sequence[str], group: TableGroup, layer: str
) -> None:
    dim = group.config.dim
    num_floats = dim + group.config.sparse_optimizer().num_slot_floats(dim)
    if rows.values.shape[1] != num_floats:
        raise ValueError(
            f"Layer '{layer}' expects rows of {num_floats} numbers in table "
            f"'{group.config.name}', dim={dim} weights and the slots of "
            f"'{group.config.sparse_optimizer().kind}'. Received: rows of "
            f"{rows.values.shape[1]} numbers. The file was saved with another dim or "
            "optimizer."
        )
    unknown = sorted(set(names) - set(group.features))
    if unknown:
        raise ValueError(
            f"Layer '{layer}' has no features {unknown}, but the file has rows of "
            f"them. Received: a layer with features {sorted(group.features)}."
        )
