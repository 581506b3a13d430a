"""What makes files on a disk trustworthy: checksums, and waiting for the disk."""

import hashlib
import json
import os
import pathlib
from typing import Any


def checksum(facts: dict[str, Any]) -> str:
    """Returns the SHA-256 of a dict as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def file_sha256(path: pathlib.Path) -> str:
    """Returns the SHA-256 of what is in a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: pathlib.Path) -> None:
    """Returns when a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
