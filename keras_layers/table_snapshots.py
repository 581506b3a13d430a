"""Snapshots of a layer's tables: directories of their own, saved while training."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_layers.storage.storage import SavedTable
from keras_layers.table_group import TableGroup, feature_seed
from tfctr_ops import SnapshotInfo, read_info


def begin_snapshots(
    groups: Sequence[TableGroup], directory: pathlib.Path, scratch: pathlib.Path
) -> None:
    """Begins a snapshot of every group, of this moment; see `Table.begin_save`."""
    for index, group in enumerate(groups):
        group.table.begin_save(str(directory / str(index)), str(scratch))


def finish_snapshots(
    groups: Sequence[TableGroup], seeds: Mapping[str, int]
) -> dict[str, int]:
    """Writes the snapshots that were begun; returns the counts of all together."""
    totals: dict[str, int] = {}
    for group in groups:
        metadata = {
            "table": group.config.name,
            "features": list(group.features),
            "seeds": dict(seeds),
            "learning_rate": _fixed_rate(group),
        }
        for name, count in group.table.finish_save(json.dumps(metadata)).items():
            totals[name] = totals.get(name, 0) + count
    return totals


def restore_snapshots(
    groups: Sequence[TableGroup],
    directory: pathlib.Path,
    seeds: dict[str, int],
    layer: str,
) -> None:
    """Replaces the rows of every group by those of its snapshot.

    Features are matched by name. The seeds of the tables, in `seeds` by table name,
    become those of the saved ones, so that new ids start as they would have there.

    Raises:
        ValueError: If the snapshots are of other tables. Nothing was replaced.
        tf.errors.UnavailableError: If there is none of a table.
        tf.errors.DataLossError: If a file is damaged: with rows in it, and the table is
            empty; without, and the table is as it was.
    """
    saved = []
    saved_step: dict[int, int] = {}
    for index, group in enumerate(groups):
        parts = _parts_of(directory / str(index))
        for path in parts:
            info = read_info(str(path))
            metadata = json.loads(info.metadata)
            if set(metadata["features"]) != set(group.features):
                raise ValueError(
                    f"Layer '{layer}' expects a snapshot of the features "
                    f"{list(group.features)}. Received: '{path}' with the features "
                    f"{metadata['features']}. Build the model as it was when the "
                    "snapshot was made."
                )
            _check_rows(group, info, path, layer)
            if info.step != saved_step.setdefault(index, info.step):
                raise ValueError(
                    f"Layer '{layer}' expects parts of a table that were saved at one "
                    f"step. Received: '{path}' of step {info.step}, and another of "
                    f"step {saved_step[index]}. Restore another checkpoint."
                )
        saved.append((group, parts, metadata))
    for group, parts, metadata in saved:
        seeds.update(metadata["seeds"])
        group.seeds = [
            feature_seed(seeds[name.split("/")[0]], name.split("/", 1)[1])
            for name in group.features
        ]
        numbers = [group.features[name] for name in metadata["features"]]
        group.table.restore(
            SavedTable([str(path) for path in parts], numbers, group.seeds)
        )
        group.step.assign(group.table.stats()["step"])
        if (rate := metadata["learning_rate"]) is not None:
            optimizer: Any = group.config.optimizer
            optimizer.learning_rate.assign(rate)


def part_name(part: int, num_parts: int) -> str:
    """Returns where, below a table's snapshot, one of its several owners saves."""
    return f"part-{part:05d}-of-{num_parts:05d}"


def _parts_of(directory: pathlib.Path) -> list[pathlib.Path]:
    """The snapshots that make up a table: one, or those of all who owned a share."""
    first = next(directory.glob(part_name(0, 0)[:10] + "-of-*"), None)
    if first is None:
        return [directory]
    num_parts = int(first.name.rpartition("-")[2])
    return [directory / part_name(part, num_parts) for part in range(num_parts)]


def _check_rows(
    group: TableGroup, info: SnapshotInfo, path: pathlib.Path, layer: str
) -> None:
    dim = group.config.dim
    slots = group.config.sparse_optimizer().num_slot_floats(dim)
    if (info.dim, info.num_slot_floats) != (dim, slots):
        raise ValueError(
            f"Layer '{layer}' expects a snapshot of rows of dim={dim} with {slots} "
            f"optimizer values. Received: '{path}' with dim={info.dim} and "
            f"{info.num_slot_floats}. Build the model as it was when the snapshot was "
            "made."
        )


def _fixed_rate(group: TableGroup) -> float | None:
    """The learning rate, if it is a variable that a callback may have changed."""
    rate = getattr(group.config.optimizer, "learning_rate", None)
    return float(rate.numpy()) if isinstance(rate, keras.Variable) else None
