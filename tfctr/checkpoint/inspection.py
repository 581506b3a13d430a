"""`tfctr inspect`: what a checkpoint or a snapshot holds, and whether it is whole."""

import json
import os
import pathlib
from typing import Any

from keras_layers.storage.byte_size import format_bytes
from tfctr.checkpoint.directory import CheckpointDirectory
from tfctr_ops import find_damage, read_info

_MANIFEST = "MANIFEST"


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads everything under a directory, and says what is there.

    Args:
        path: Path of a `Checkpoint` directory, of one checkpoint in it, or of the
            snapshot of one table.

    Returns:
        A dict for JSON: `path`; `checkpoints`, of which each has `step`, `epoch`,
        `batch`, `path`, `tables` and `damage`; and `tables` that belong to none. A
        table has `path`, `table`, `features`, `step`, `dim`, `rows`, `bytes`,
        `live_share` (rows of the snapshot per row in its files), `segments` and
        `damage`, a list of strings; one whose manifest is damaged has `path` and
        `damage` alone.

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
    if not checkpoints and not tables:
        raise ValueError(
            "There must be a checkpoint or a snapshot of tfctr to inspect: a directory "
            "with 'step-...', 'state.json' or 'MANIFEST' in it. Received: "
            f"'{root}', which has none."
        )
    return {"path": str(root), "checkpoints": checkpoints, "tables": tables}


def is_whole(result: dict[str, Any]) -> bool:
    """Whether `inspect` found no damage."""
    return not any(
        part["damage"]
        for checkpoint in [*result["checkpoints"], {"damage": [], **result}]
        for part in [checkpoint, *checkpoint["tables"]]
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
