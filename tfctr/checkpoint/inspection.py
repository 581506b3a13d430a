"""`tfctr inspect`: what checkpoints, snapshots and stores hold, and their damage."""

import dataclasses
import json
import os
import pathlib
import re
from typing import Any

import tensorflow as tf

from keras_layers.storage.byte_size import format_bytes
from tfctr.checkpoint.directory import CheckpointDirectory
from tfctr_ops import find_damage, inspect_store, read_info

_MANIFEST = "MANIFEST"
_STORE = re.compile(r"tfctr-\d+-\d+")


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads everything under a directory, and says what is there.

    Args:
        path: Path of a `Checkpoint` directory, of one checkpoint in it, of the
            snapshot of one table, of the `ssd` of a `TieredStorage`, or of one store
            in that.

    Returns:
        A dict for JSON: `path`; `checkpoints`, of which each has `step`, `epoch`,
        `batch`, `path`, `tables` and `damage`; `tables` that belong to none; and
        `stores`. A table has `path`, `table`, `features`, `step`, `dim`, `rows`,
        `bytes`, `live_share` (rows of the snapshot per row in its files), `segments`
        and `damage`, a list of strings; one whose manifest is damaged has `path` and
        `damage` alone. A store has `path` and the attributes of `tfctr_ops.StoreFiles`,
        with `live_share`: distinct keys per row on disk. That is what may be live at
        most, as rows in memory are not seen.

    Raises:
        ValueError: If there is nothing of tfctr in the directory.
    """
    root = pathlib.Path(path)
    directory = CheckpointDirectory(root)
    checkpoints = [_checkpoint(directory, step) for step in directory.steps()]
    if (root / "state.json").exists():
        # One checkpoint: its directory is told by its name.
        parent = CheckpointDirectory(root.resolve().parent)
        found = [s for s in parent.steps() if parent.of_step(s).name == root.name]
        checkpoints = [_checkpoint(parent, step) for step in found]
    tables = [] if checkpoints else _tables(root)
    # Beside checkpoints it is scratch, which a process that died leaves unfinished.
    stores = [] if checkpoints else _stores(root)
    if not checkpoints and not tables and not stores:
        raise ValueError(
            "There must be a checkpoint, a snapshot or a store of tfctr to inspect: a "
            "directory with 'step-...', 'state.json' or 'MANIFEST' in it, or 'LOCK' "
            "and 'segment-...', or the `ssd` directory with 'tfctr-...' in it. "
            f"Received: '{root}', which has none."
        )
    return {
        "path": str(root),
        "checkpoints": checkpoints,
        "tables": tables,
        "stores": stores,
    }


def is_whole(result: dict[str, Any]) -> bool:
    """Whether `inspect` found no damage."""
    return not any(
        part["damage"]
        for checkpoint in [*result["checkpoints"], {"damage": [], **result}]
        for part in [checkpoint, *checkpoint["tables"], *checkpoint.get("stores", [])]
    )


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = []
    for checkpoint in result["checkpoints"]:
        lines.append(
            f"{checkpoint['path']}: step {checkpoint['step']:,}, epoch "
            f"{checkpoint['epoch']}, batch {checkpoint['batch']}"
        )
        lines += [f"  {line}" for line in _table_lines(checkpoint["tables"])]
        lines += [f"  DAMAGED: {damage}" for damage in checkpoint["damage"]]
    lines += _table_lines(result["tables"])
    for store in result["stores"]:
        lines += _store_lines(store)
    lines.append("No damage." if is_whole(result) else "There is damage: see above.")
    return "\n".join(lines)


def _checkpoint(directory: CheckpointDirectory, step: int) -> dict[str, Any]:
    path, state, damage = directory.of_step(step), {}, []
    try:
        state = directory.read_state(step)
    except ValueError as error:
        damage.append(str(error))
    return {
        "path": str(path),
        "step": step,
        "epoch": state.get("epoch", -1),
        "batch": state.get("batch", -1),
        "tables": _tables(path),
        "damage": damage,
    }


def _tables(root: pathlib.Path) -> list[dict[str, Any]]:
    return [_table(file.parent) for file in sorted(root.rglob(_MANIFEST))]


def _table(path: pathlib.Path) -> dict[str, Any]:
    damage = find_damage(str(path))
    facts: dict[str, Any] = {"path": str(path), "damage": damage}
    if any(f"{path / _MANIFEST}'" in line for line in damage):
        return facts  # Nothing that it says can be trusted.
    info = read_info(str(path))
    metadata = json.loads(info.metadata) if info.metadata.startswith("{") else {}
    in_files = sum(file.rows for file in info.files)
    return {
        **facts,
        "table": metadata.get("table", ""),
        "features": metadata.get("features", []),
        "step": info.step,
        "dim": info.dim,
        "rows": info.rows,
        "bytes": info.bytes,
        "live_share": info.rows / in_files if in_files else 1.0,
        "segments": sum(file.name.startswith("segment-") for file in info.files),
    }


def _table_lines(tables: list[dict[str, Any]]) -> list[str]:
    lines = []
    for table in tables:
        if "rows" in table:
            lines.append(
                f"{table['path']}: table '{table['table']}' of dim {table['dim']}, "
                f"{table['rows']:,} rows after {table['step']:,} updates, "
                f"{format_bytes(table['bytes'])} in {table['segments']} segments, "
                f"{table['live_share']:.0%} live"
            )
        lines += [f"  DAMAGED: {damage}" for damage in table["damage"]]
    return lines


def _stores(root: pathlib.Path) -> list[dict[str, Any]]:
    """The store that the directory is, or those in it."""
    paths = [root] if _is_store(root) else sorted(root.glob("tfctr-*"))
    found = []
    for path in filter(_is_store, paths):
        try:
            files = inspect_store(str(path))
        except tf.errors.UnavailableError:
            if path.exists():
                raise
            continue  # Its owner closed it meanwhile.
        share = files.keys / files.rows if files.rows else 1.0
        facts = dataclasses.asdict(files) | {"damage": list(files.damage)}
        found.append({"path": str(path), "live_share": share, **facts})
    return found


def _is_store(path: pathlib.Path) -> bool:
    # Checkpoints have a LOCK too, and snapshots have segments.
    return (path / "LOCK").is_file() and (
        _STORE.fullmatch(path.resolve().name) is not None or any(path.glob("segment-*"))
    )


def _store_lines(store: dict[str, Any]) -> list[str]:
    owner = "in use" if store["is_in_use"] else "left over, its owner is gone"
    rows = "no rows on disk yet"
    if store["dim"] > 0:
        rows = (
            f"dim {store['dim']}, {store['num_slot_floats']} optimizer values and "
            f"{store['row_bytes']} bytes a row, {store['rows']:,} rows of "
            f"{store['keys']:,} keys"
        )
    lines = [
        f"{store['path']}: store, {owner}: {rows}, {format_bytes(store['bytes'])} in "
        f"{store['segments']} segments, at most {store['live_share']:.0%} live (rows "
        "in memory are not seen: one removed or changed there counts as live)"
    ]
    return lines + [f"  DAMAGED: {damage}" for damage in store["damage"]]
