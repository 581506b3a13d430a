"""`import_tfra`: a snapshot of the tables of a TFRA model."""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfctr.migration.tfra_files import Keys, TfraFiles, Values
from tfctr_ops import EmbeddingStore, RowInitializer, Rows, SparseOptimizer, StoreConfig

# What TFRA calls the slots of an optimizer, in the order of a row, and what they start
# from, for keys that have none.
SLOTS = {
    "sgd": {},
    "adagrad": {"accumulator": 0.1},
    "adam": {"m": 0.0, "v": 0.0},
    "ftrl": {"accumulator": 0.1, "linear": 0.0},
}

# What rows are saved under: `table/namespace`, or `table/namespace/column`. The
# namespace of a layer's only feature may be empty: `table/` and `table/column`.
_FEATURE = re.compile(r"[^/]+/([^/]*|[^/]+/\d+)")


@dataclasses.dataclass(frozen=True)
class ImportedTable:
    """What came of one table.

    Args:
        name: String. As TFRA has it.
        feature: String. What its rows are in the snapshot.
        rows: Integer.
        rows_without_slots: Integer. Their slots start anew.
    """

    name: str
    feature: str
    rows: int
    rows_without_slots: int


def import_tfra(
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    tables: Mapping[str, str],
    dim: int,
    optimizer: str,
    step: int | None = None,
) -> list[ImportedTable]:
    """Writes saved tables of a TFRA model as a snapshot of one `DynamicEmbedding`.

    `DynamicEmbedding.restore_snapshot(directory)` reads it into a layer whose features
    have the names in `tables`, and whose tables the width and the optimizer. All tables
    of the layer must have one optimizer object, and the same initializer and other
    options: else it keeps them apart, and expects a snapshot of each. Needs memory for
    all rows. TFRA need not be installed.

    Args:
        source: Path. A checkpoint, or its directory, where the newest counts; a
            SavedModel; or a directory with files of `de.FileSystemSaver`.
        directory: Path, which must not exist.
        tables: Dict from TFRA's names of tables, such as `"user-parameter"` of a layer
            `"user"`, to `"table/feature"`: the names of a `TableConfig` and of a
            feature, or its namespace. For a `per_column` feature `"table/feature/0"`,
            which is one column of it. Each is given once.
        dim: Integer. Width of the tables.
        optimizer: String. `"sgd"`, `"adagrad"`, `"adam"` or `"ftrl"`: which slots come
            along.
        step: Integer. How many steps the optimizer has made. `None`: the checkpoint
            says so.

    Returns:
        What came of each table.

    Raises:
        ValueError: If there is no such table or slot, or it is of another width; or if
            the directory exists. Nothing was written.

    Example:

    >>> names = {"user-parameter": "users/user"}
    >>> import_tfra("nowhere", "new", names, dim=4, optimizer="adam")
    Traceback (most recent call last):
        ...
    ValueError: There must be tables of TFRA to import: a checkpoint, ...
    """
    if optimizer not in SLOTS:
        known = ", ".join(f"'{name}'" for name in SLOTS)
        raise ValueError(
            f"`optimizer` must be one of {known}. Received: optimizer={optimizer!r}."
        )
    _check_tables(tables)
    if os.path.lexists(directory):
        raise ValueError(
            "`directory` must not exist: the snapshot is all that will be in it. "
            f"Received: '{directory}', which exists. Name another, or remove it."
        )
    files = TfraFiles(str(source))
    step = files.step if step is None else step
    if step is None:
        raise ValueError(
            "How many steps the optimizer has made stands in no checkpoint here. "
            f"Received: '{source}', and no `step`. Say --step."
        )
    parts, report = [], []
    for name, feature in tables.items():
        keys, floats, missing = _rows_of(files, name.replace("/", "_"), dim, optimizer)
        parts.append((keys, floats))
        report.append(ImportedTable(name, feature, len(keys), missing))
    store = EmbeddingStore(
        StoreConfig(
            table=next(iter(tables.values())).split("/")[0],
            dim=dim,
            optimizer=SparseOptimizer(optimizer),
            initializer=RowInitializer("constant"),
            feature_seeds=tuple(range(len(tables))),
            default_row=(0.0,) * dim,
        )
    )
    store.import_rows(_as_rows(parts, step), step)
    metadata: dict[str, Any] = {
        "table": store.config.table,
        "features": list(tables.values()),
        # The layer keeps its own.
        "seeds": {},
        "learning_rate": None,
    }
    store.save(str(pathlib.Path(directory) / "0"), json.dumps(metadata))
    return report


def _check_tables(tables: Mapping[str, str]) -> None:
    if not tables:
        raise ValueError(
            "`tables` must have at least one table to import. Received: tables={}. "
            "Name one, as in {'user-parameter': 'users/user'}."
        )
    sources: dict[str, str] = {}
    for name, feature in tables.items():
        if not _FEATURE.fullmatch(feature):
            raise ValueError(
                "Each table must get the name of a TableConfig and of a feature, as in "
                "'users/user', and of a column if each is a feature of its own, as in "
                f"'users/user/0'. Received: '{feature}'."
            )
        if feature in sources:
            raise ValueError(
                "Each feature must get the rows of one table. Received: "
                f"'{sources[feature]}' and '{name}' for '{feature}'. Give each a "
                "feature of its own."
            )
        sources[feature] = name


def _rows_of(
    files: TfraFiles, name: str, dim: int, optimizer: str
) -> tuple[Keys, Values, int]:
    """Returns keys, weights with slots beside them, and how many keys have no slots."""
    if name not in files.names:
        raise ValueError(
            "`tables` must be some of those that were saved: "
            f"{_main_tables(files.names)}. Received: '{name}'."
        )
    keys, weights = files.read(name, dim)
    columns, has_slots = [weights], np.ones(len(keys), bool)
    for slot, start in SLOTS[optimizer].items():
        slot_keys, values = files.read(_slot_table(files.names, name, slot), dim)
        place = np.searchsorted(slot_keys, keys)
        found = place < len(slot_keys)
        found[found] = slot_keys[place[found]] == keys[found]
        column = np.full_like(weights, start)
        column[found] = values[place[found]]
        columns.append(column)
        has_slots &= found
    return keys, np.concatenate(columns, axis=1), int(np.sum(~has_slots))


def _slot_table(names: list[str], name: str, slot: str) -> str:
    """Returns the name of the table of a slot: `<name>_..._<shadow>_<slot>`."""
    longer = [other for other in _main_tables(names) if other.startswith(f"{name}_")]
    found = [
        other
        for other in names
        if other.startswith(f"{name}_")
        and other.endswith(f"_{slot}")
        and not any(other.startswith(f"{table}_") for table in longer)
    ]
    if len(found) != 1:
        raise ValueError(
            f"Table '{name}' must have one table of the slot '{slot}', named "
            f"'{name}_..._{slot}'. Received: {found or 'none'} among {names}. Name the "
            "optimizer that trained it."
        )
    return found[0]


def _main_tables(names: list[str]) -> list[str]:
    """Those that are no slots and no status of a restrict policy."""
    slots = {slot for kind in SLOTS.values() for slot in kind}
    extra = tuple(f"_{end}" for end in (*slots, "timestamp", "frequency"))
    return [
        name
        for name in names
        if not (
            name.endswith(extra)
            and any(name.startswith(f"{other}_") for other in names if other != name)
        )
    ]


def _as_rows(parts: list[tuple[Keys, Values]], step: int) -> Rows:
    keys = np.concatenate([keys for keys, _ in parts])
    features = np.repeat(np.arange(len(parts)), [len(keys) for keys, _ in parts])
    # TFRA does not say when and how often a row was updated.
    counters = tf.fill([len(keys)], tf.constant(step, tf.int64))
    return Rows(
        tf.constant(keys, tf.int64),
        tf.constant(features, tf.int32),
        tf.constant(np.concatenate([floats for _, floats in parts])),
        counters,
        counters,
    )
