"""How tables pass through Keras' own saving, and what is refused instead of lost."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_layers.admission import admission_from_config, admission_to_config
from keras_layers.expiry import Expiry
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
            other weights, or are trained meanwhile.
    """
    _check_size(groups, save_limit, layer)
    for index, group in enumerate(groups):
        with group.one_at_a_time():
            step = _check_step(group, layer)
            rows = group.table.save_rows()
            admission = group.table.save_admission()
            _check_still(group, step, layer)
        arrays = Rows(*(np.asarray(column) for column in rows))
        # By key, so that equal tables give equal files.
        order = np.lexsort((arrays.ids, arrays.features))
        for field, column in zip(_FIELDS, arrays, strict=True):
            store[f"table_{index}_{field}"] = column[order]
        if admission.size > 0:
            store[f"table_{index}_admission"] = admission
        store[f"table_{index}_step"] = np.asarray(step, np.int64)
        text = json.dumps(_layout(group)).encode()
        store[f"table_{index}_layout"] = np.frombuffer(text, np.uint8)


def load_groups(groups: Sequence[TableGroup], store: Any, layer: str) -> None:
    """Replaces the rows of each group by those of a Keras weight store.

    Rows are matched by the names of their features, so a layer whose features come in
    another order gets its own rows.

    Raises:
        ValueError: If the saved tables do not fit. Nothing was replaced.
        tf.errors.ResourceExhaustedError: If the rows exceed the budget. Nothing was
            replaced.
    """
    saved: list[_SavedTable] = []
    while f"table_{len(saved)}_layout" in store:
        saved.append(_read_table(store, len(saved)))
    fitting = [
        [
            table
            for table in saved
            if set(table.layout["features"]) & set(group.features)
        ]
        for group in groups
    ]
    if len(saved) != len(groups) or any(len(tables) != 1 for tables in fitting):
        raise ValueError(
            f"Layer '{layer}' expects saved tables with the features "
            f"{[list(group.features) for group in groups]}. Received: tables with the "
            f"features {[table.layout['features'] for table in saved]}. The file was "
            "saved from a layer whose tables differ, or this layer is not built yet: "
            "call it once."
        )
    for group, [table] in zip(groups, fitting, strict=True):
        _check_table(table, group, layer)
    before = []
    try:
        for group, [table] in zip(groups, fitting, strict=True):
            # The last one changes nothing where it fails, but for its counts.
            if group is not groups[-1] or table.admission.size > 0:
                step = group.table.stats()["step"]
                admission = group.table.save_admission()
                saved_rows = group.table.own_rows()
                before.append((group, saved_rows, step, admission))
            group.table.restore_rows(_renumbered(table, group), table.step)
            numbers = [group.features[name] for name in table.layout["features"]]
            group.table.restore_admission(table.admission, numbers)
    except tf.errors.OpError:
        for live, rows, step, admission in before:
            live.table.restore_rows(rows, step)
            live.table.restore_admission(admission, range(len(live.features)))
        raise
    for group, [table] in zip(groups, fitting, strict=True):
        group.step.assign(table.step)


class _SavedTable(NamedTuple):
    """What a file says of one table: see `_layout`; its rows; its updates so far.

    And what its admission has counted, as bytes.
    """

    layout: dict[str, Any]
    rows: Rows
    step: int
    admission: npt.NDArray[np.uint8]


def _layout(group: TableGroup) -> dict[str, Any]:
    """Returns what the numbers of a saved row mean, JSON-able."""
    return {
        "features": list(group.features),
        "dim": group.config.dim,
        "optimizer": group.config.sparse_optimizer().kind,
    }


def _read_table(store: Any, index: int) -> _SavedTable:
    columns = [np.asarray(store[f"table_{index}_{field}"]) for field in _FIELDS]
    layout = json.loads(bytes(np.asarray(store[f"table_{index}_layout"])).decode())
    step = int(np.asarray(store[f"table_{index}_step"]))
    admission = np.zeros(0, np.uint8)
    if f"table_{index}_admission" in store:
        admission = np.asarray(store[f"table_{index}_admission"])
    return _SavedTable(layout, Rows(*columns), step, admission)


def _renumbered(table: _SavedTable, group: TableGroup) -> Rows:
    """Returns the saved rows under the numbers that their features have now."""
    names = table.layout["features"]
    numbers = np.array([group.features[name] for name in names], np.int32)
    return table.rows._replace(features=numbers[table.rows.features])


def features_to_config(
    features: FeatureConfig | dict[str, FeatureConfig],
    seeds: dict[str, int],
    layer: str,
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
                "admission": admission_to_config(table.admission),
                "expiry": table.expiry and dataclasses.asdict(table.expiry),
            }
            for table in tables
        ],
        "features": NotInLegacyFiles(
            {
                name: {
                    "table": _index(tables, config.table),
                    "combiner": config.combiner,
                    "padding_id": config.padding_id,
                    "namespace": config.namespace,
                    "per_column": config.per_column,
                }
                for name, config in named.items()
            },
            layer,
        ),
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
                # Older files know of neither.
                "admission": admission_from_config(table.get("admission")),
                "expiry": table.get("expiry") and Expiry(**table["expiry"]),
            }
        )
        for table in config.pop("tables")
    ]
    named = {
        name: FeatureConfig(**{**feature, "table": tables[feature["table"]]})
        for name, feature in config.pop("features").items()
    }
    return named.get("", named)


class NotInLegacyFiles(dict[str, Any]):
    """A dict that cannot be saved in the legacy format of Keras, `.h5`.

    That format asks a layer for its variables only, and not for its rows. But it looks
    for a `get_config` even in a dict, where the format `.keras` sees just a dict.
    """

    def __init__(self, items: dict[str, Any], layer: str) -> None:
        super().__init__(items)
        self.layer = layer

    def get_config(self) -> dict[str, Any]:
        # Keras goes on after a ValueError.
        raise NotImplementedError(
            f"Layer '{self.layer}' cannot be saved in the legacy format of Keras: its "
            "rows are no variables, and the file would be without them. Received: that "
            "format, as for a path that ends in '.h5' or '.hdf5'. Save the model as "
            "'.keras', or by model.save_weights as '.weights.h5', which carry them."
        )


def refusal(save_type: str, layer: str) -> str:
    """Returns what to say when TensorFlow wants to save the layer by its variables."""
    if save_type == "savedmodel":
        return (
            f"Layer '{layer}' cannot be exported by Model.export or "
            "tf.saved_model.save: its rows are no TensorFlow variables, and the file "
            "would be without them. tfctr.export takes them out: "
            "tfctr.export.saved_model(model, directory) for servers, "
            "tfctr.export.vectors(layer) for other programs."
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
        size += stats["known_rows"] * stats["row_bytes"] + stats["admission_bytes"]
    if size > parse_bytes("save_limit", save_limit):
        raise ValueError(
            f"Layer '{layer}' saves at most save_limit={save_limit!r} of rows through "
            "Keras, since they pass through memory whole and into one file. Received: "
            f"{format_bytes(size)} of rows. Raise the limit if that fits: "
            f'DynamicEmbedding(..., save_limit="{format_bytes(2 * size)}").'
        )


def _check_step(group: TableGroup, layer: str) -> int:
    step = int(group.table.stats()["step"])
    expected = int(group.step.numpy())
    if step != expected:
        raise ValueError(
            f"Layer '{layer}' cannot be saved: its rows and its weights must be of the "
            f"same moment. Received: rows of table '{group.config.name}' after {step} "
            f"updates, weights after {expected}. If weights were set without the rows, "
            "as by `set_weights` or EarlyStopping(restore_best_weights=True), go back "
            "by `load_weights`, which carries both. If another thread trains the "
            "layer, save between its steps."
        )
    return step


def _check_still(group: TableGroup, step: int, layer: str) -> None:
    now = int(group.table.stats()["step"])
    if now != step:
        raise ValueError(
            f"Layer '{layer}' cannot be saved while another thread trains it. "
            f"Received: table '{group.config.name}' after {step} updates when saving "
            f"began, after {now} when it ended. Save between the steps of training."
        )


def _check_table(table: _SavedTable, group: TableGroup, layer: str) -> None:
    saved, expected = table.layout, _layout(group)
    if (saved["dim"], saved["optimizer"]) != (expected["dim"], expected["optimizer"]):
        raise ValueError(
            f"Layer '{layer}' expects rows of dim={expected['dim']} with the slots of "
            f"'{expected['optimizer']}' in table '{group.config.name}'. Received: rows "
            f"of dim={saved['dim']} with the slots of '{saved['optimizer']}'. Give "
            "the table the dim and optimizer that the file was saved with."
        )
    names = saved["features"]
    unknown = sorted(set(names) - set(group.features))
    if unknown:
        raise ValueError(
            f"Layer '{layer}' has no features {unknown}, but the file has rows of "
            f"them. Received: a layer with features {sorted(group.features)}."
        )
    numbers = table.rows.features
    known = (numbers >= 0) & (numbers < len(names))
    if len(set(names)) != len(names) or not np.all(known):
        raise ValueError(
            f"Layer '{layer}' expects each saved row of table '{group.config.name}' to "
            f"have one of {len(names)} distinct features. Received: features {names}, "
            f"rows of the numbers {np.unique(numbers).tolist()}. The file is damaged."
        )
