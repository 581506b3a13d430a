"""`delta` and `apply_delta`: the next version of an export, from what changed."""

import os
import pathlib
import shutil

from tfctr.export.draft import MANIFEST, new_directory, read_manifest, write_manifest
from tfctr.export.stored_table import StoredTable, table_part
from tfctr.export.variable_files import (
    VARIABLES,
    Array,
    VariableFiles,
    digest,
    write_variables,
)

DELTA_MANIFEST = "tfctr_delta.json"
# Below it, no server takes the delta for a version of the model.
_LATER = "later"


def delta(
    earlier: str | os.PathLike[str],
    later: str | os.PathLike[str],
    directory: str | os.PathLike[str],
) -> pathlib.Path:
    """Writes what changed between two exports of a model.

    It holds the rows that are new or other than before, to the bit, the keys of those
    that are gone, the dense weights that changed, and the graph. A server's machine
    that has the earlier export makes the later one of it by `apply_delta`.

    Args:
        earlier: Path of an export of `saved_model`, or of `apply_delta`.
        later: Path of another export of the same model, with the same `quantize`.
        directory: Path of the delta, which must not exist. It appears when the delta is
            complete.

    Returns:
        The directory.

    Raises:
        ValueError: If the directory exists, an export is damaged, or their tables are
            not the same ones.

    Example:

    >>> import tempfile
    >>> model = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     first = saved_model(model, f"{directory}/1")
    ...     model.set_weights([np.ones((2, 1)), np.ones(1)])
    ...     second = saved_model(model, f"{directory}/2")
    ...     changed = delta(first, second, f"{directory}/delta-2")
    ...     path = apply_delta(first, changed, f"{directory}/copy")
    ...     served = tf.saved_model.load(path).signatures["serving_default"]
    ...     [predicted] = served(x=tf.constant([[1.0, 1.0]])).values()
    >>> predicted.numpy().tolist()
    [[3.0]]
    """
    old_path, new_path = pathlib.Path(earlier), pathlib.Path(later)
    old_facts, new_facts = read_manifest(old_path), read_manifest(new_path)
    for export, facts in ((old_path, old_facts), (new_path, new_facts)):
        if facts.get("store") is not None:
            raise ValueError(
                "`delta` compares exports with tables='stock'. Received: "
                f"'{export}', with tables='store'. Copy the whole export."
            )
    old, new = VariableFiles(old_path), VariableFiles(new_path)
    tables, others = _numbers(new), [n for n in new.names if table_part(n) is None]
    names = [list(facts["tables"]) for facts in (old_facts, new_facts)]
    if names[0] != names[1] or _numbers(old) != tables:
        raise _other_tables(old_path, new_path, f"{names[0]} and {names[1]}")
    digests: dict[str, str] = {}
    changed: dict[str, Array] = {}
    num_changed: dict[str, dict[str, int]] = {}
    for number in tables:
        before, after = _table(old, number), _table(new, number)
        label = names[0][number]
        if not before.is_like(after):
            rows = [table.parts["rows"] for table in (before, after)]
            received = " and ".join(f"{r.dtype} {r.shape[1]} wide" for r in rows)
            raise _other_tables(old_path, new_path, f"table '{label}' of {received}")
        changes = before.changes_to(after)
        changed |= {f"{number}/{name}": part for name, part in changes.items()}
        kinds = {"changed": "keys", "removed": "removed"}
        num_changed[label] = {kind: len(changes[part]) for kind, part in kinds.items()}
        digests |= {_name(number, part): digest(a) for part, a in after.parts.items()}
    for name in others:
        value = new.read(name)
        digests[name] = digest(value)
        if name not in old.names or digest(old.read(name)) != digests[name]:
            changed[name] = value
    path = pathlib.Path(directory).absolute()
    with new_directory(path) as draft:
        shutil.copytree(
            new_path,
            draft / _LATER,
            ignore=lambda folder, _: [VARIABLES] if folder == str(new_path) else [],
        )
        write_variables(draft, changed)
        facts = {
            "since": old_facts["id"],
            "later": {n: v for n, v in new_facts.items() if n != "files"},
            "variables": digests,
            "rows": num_changed,
        }
        write_manifest(draft, facts, DELTA_MANIFEST)
    return path


def apply_delta(
    earlier: str | os.PathLike[str],
    delta: str | os.PathLike[str],
    directory: str | os.PathLike[str],
) -> pathlib.Path:
    """Makes the next version of an export: its own rows, and those that changed.

    What comes out is the later export of the delta, whose checksums it is compared
    with. A server that polls for versions sees it when it is complete and on disk. The
    model is not needed. It takes three times the memory of the rows; where keys came
    or went, their index is computed anew.

    Args:
        earlier: Path of the export that the delta was made from, or of one that
            `apply_delta` has brought there.
        delta: Path of what `delta` has written.
        directory: Path, which must not exist, such as `"models/ads/2"`.

    Returns:
        The directory of the next version.

    Raises:
        ValueError: If a directory is damaged or not copied whole, if the delta is for
            another export, or if the next version exists.

    Example:

    >>> apply_delta("models/ads/1", "deltas/2", "models/ads/2")  # doctest: +SKIP
    """
    base_path, delta_path = pathlib.Path(earlier), pathlib.Path(delta)
    base_facts = read_manifest(base_path)
    facts = read_manifest(delta_path, DELTA_MANIFEST, "delta")
    if facts["since"] != base_facts["id"]:
        raise ValueError(
            f"The delta '{delta_path}' is for the export {facts['since'][:12]}. "
            f"Received: '{base_path}', which is {base_facts['id'][:12]}. Apply deltas "
            "one after the other, or copy a whole export."
        )
    base, changed = VariableFiles(base_path), VariableFiles(delta_path)
    variables: dict[str, Array] = {}
    for number in _numbers(base):
        table = _table(base, number).with_changes(_changes(changed, number))
        variables |= {_name(number, part): a for part, a in table.parts.items()}
    for name in facts["variables"]:
        if name not in variables:
            source = changed if name in changed.names else base
            variables[name] = source.read(name)
    for name, expected in facts["variables"].items():
        if (found := digest(variables[name])) != expected:
            raise ValueError(
                f"The delta '{delta_path}' must make variable '{name}' with SHA-256 "
                f"{expected}. Received: {found}. Copy the whole export."
            )
    path = pathlib.Path(directory).absolute()
    with new_directory(path) as draft:
        shutil.copytree(delta_path / _LATER, draft, dirs_exist_ok=True)
        (draft / MANIFEST).unlink()
        write_variables(draft, variables)
        write_manifest(draft, facts["later"])
    return path


def _numbers(files: VariableFiles) -> list[int]:
    parts = map(table_part, files.names)
    return sorted({part[0] for part in parts if part is not None})


def _table(files: VariableFiles, number: int) -> StoredTable:
    parts = {name: table_part(name) for name in files.names}
    return StoredTable(
        {
            part[1]: files.read(name)
            for name, part in parts.items()
            if part is not None and part[0] == number
        }
    )


def _name(number: int, part: str) -> str:
    return f"tables/{number}/_{part}/.ATTRIBUTES/VARIABLE_VALUE"


def _changes(files: VariableFiles, number: int) -> dict[str, Array]:
    prefix = f"{number}/"
    return {
        name.removeprefix(prefix): files.read(name)
        for name in files.names
        if name.startswith(prefix)
    }


def _other_tables(
    earlier: pathlib.Path, later: pathlib.Path, received: str
) -> ValueError:
    return ValueError(
        f"A delta is of one model: '{earlier}' and '{later}' must have the same "
        f"tables. Received: {received}. Copy the whole export."
    )
