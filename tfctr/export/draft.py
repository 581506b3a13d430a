"""Directories that are there whole, or not at all, and that show any damage."""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from tfctr.checkpoint.lasting_files import checksum, file_sha256, sync

# Servers leave alone what lies there.
EXTRA = "assets.extra"
MANIFEST = f"{EXTRA}/tfctr.json"
_VERSION = 1


@contextlib.contextmanager
def new_directory(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes a directory that appears under its name when it is complete and on disk.

    Yields:
        Path of the draft to be filled, beside `directory`: `NAME.draft-...`, which no
        server takes for a version. It is removed if anything goes wrong.

    Raises:
        ValueError: If the directory exists.
    """
    refuse_existing(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Some file systems take no names beyond 255 bytes.
    draft = pathlib.Path(
        tempfile.mkdtemp(prefix=f"{directory.name}.draft-", dir=directory.parent)
    )
    try:
        draft.chmod(0o755)
        yield draft
        for path in [*draft.rglob("*"), draft]:
            sync(path)
        refuse_existing(directory)
        draft.rename(directory)
        sync(directory.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def refuse_existing(directory: pathlib.Path) -> None:
    """Raises `ValueError` if there is something of that name."""
    if os.path.lexists(directory):
        raise ValueError(
            "An export makes a directory of its own, as servers expect of each "
            f"version. Received: '{directory}', which exists. Name the next version, "
            "or remove it."
        )


def write_manifest(
    draft: pathlib.Path, facts: dict[str, Any], name: str = MANIFEST
) -> None:
    """Writes sizes and checksums of all files, and some facts, as the last file.

    Args:
        draft: Path of a directory that has all other files.
        facts: What else to tell. Without an `id`, it is the checksum of all of it.
        name: String. Of the manifest, within the directory.
    """
    files = {
        path.relative_to(draft).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": file_sha256(path),
        }
        for path in sorted(draft.rglob("*"))
        if path.is_file()
    }
    whole = {"version": _VERSION, **facts, "files": files}
    whole = {"id": checksum(whole), **whole}
    path = draft / name
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"checksum": checksum(whole), **whole}, indent=1)
    path.write_text(text + "\n")


def read_manifest(
    directory: pathlib.Path, name: str = MANIFEST, maker: str = "saved_model"
) -> dict[str, Any]:
    """Returns the facts of an export, after comparing every file with its checksum.

    Args:
        directory: Path of the export, or of a delta.
        name: String. Of the manifest, within the directory.
        maker: String. The function that writes such directories.

    Raises:
        ValueError: If there is no export of tfctr, or a file is damaged or missing.
    """
    path = directory / name
    if not path.is_file():
        raise ValueError(
            f"There must be an export of tfctr.export.{maker}, whole. Received: "
            f"'{directory}', without '{name}'. Copy the whole directory."
        )
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
        expected = facts.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"'{path}' is damaged: it is no manifest. Copy the export again."
        ) from error
    if (found := checksum(facts)) != expected:
        raise ValueError(
            f"'{path}' is damaged: expected SHA-256 {expected}. Received: {found}. "
            "Copy the export again."
        )
    if facts["version"] != _VERSION:
        raise ValueError(
            f"'{path}' must be of version {_VERSION}, which this tfctr reads. "
            f"Received: {facts['version']}. Use the tfctr that wrote it."
        )
    for file, known in facts["files"].items():
        _check_file(directory / file, known)
    return facts


def _check_file(path: pathlib.Path, expected: dict[str, Any]) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size != expected["bytes"]:
        received = "no file" if size is None else f"{size} bytes"
        raise ValueError(
            f"'{path}' is damaged: expected {expected['bytes']} bytes. Received: "
            f"{received}. Copy the export again."
        )
    if (found := file_sha256(path)) != expected["sha256"]:
        raise ValueError(
            f"'{path}' is damaged: expected SHA-256 {expected['sha256']}. Received: "
            f"{found}. Copy the export again."
        )
