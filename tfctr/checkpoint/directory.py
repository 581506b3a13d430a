"""`CheckpointDirectory`: checkpoints on disk, each complete or not there."""

import fcntl
import json
import os
import pathlib
import re
import shutil
from typing import Any

from tfctr.checkpoint.lasting_files import checksum, file_sha256, sync

_NAME = re.compile(r"step-(\d{12})")
_STATE = "state.json"
_VERSION = 2


class CheckpointDirectory:
    """A directory with checkpoints `step-000000001000` and so on.

    A checkpoint is made under another name and renamed when everything is on the disk.
    `state.json` holds a checksum of itself, of each file beside it, and of the manifest
    of each table's snapshot, which has those of its rows.

    Args:
        path: Path; made if need be.

    Example:

    >>> CheckpointDirectory("runs/none").steps()
    []
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self._lock: Any = None

    def lock(self) -> None:
        """Takes the directory for this process, until `unlock`.

        Raises:
            ValueError: If another process has it.
            OSError: If it can neither be written to nor made.
        """
        if self._lock is not None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "LOCK").open("w")
        except OSError as error:
            raise OSError(
                "Checkpoints need a directory that can be written to, or a place to "
                f"make one. Received: '{self.path}' ({error.strerror}). Name another "
                "directory, or move away what is there."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise ValueError(
                "A checkpoint directory belongs to one training at a time. Received: "
                f"'{self.path}', which another process is writing to. Name another "
                "directory, or end that process."
            ) from error
        self._lock = lock
        # What a process left that died while saving.
        for draft in self.path.glob("step-*.draft"):
            shutil.rmtree(draft)

    def unlock(self) -> None:
        """Leaves the directory to others."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __del__(self) -> None:
        self.unlock()

    def steps(self) -> list[int]:
        """Returns the steps there are checkpoints of, in order."""
        names = os.listdir(self.path) if self.path.is_dir() else []
        matches = (_NAME.fullmatch(name) for name in names)
        return sorted(int(match[1]) for match in matches if match)

    def of_step(self, step: int) -> pathlib.Path:
        """Returns where the checkpoint of a step is, or would be."""
        return self.path / f"step-{step:012d}"

    def draft(self, step: int) -> pathlib.Path:
        """Makes and returns the directory in which the checkpoint of a step is made."""
        draft = self.path / f"step-{step:012d}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        return draft

    def commit(self, step: int, state: dict[str, Any]) -> pathlib.Path:
        """Makes the draft of a step its checkpoint, with `state` as its `state.json`.

        Replaces a checkpoint of the same step.
        """
        draft, final = self.path / f"step-{step:012d}.draft", self.of_step(step)
        beside = [file for file in draft.iterdir() if file.is_file()]
        files = {
            str(file.relative_to(draft)): file_sha256(file)
            for file in sorted([*beside, *draft.rglob("MANIFEST")])
        }
        whole = {"version": _VERSION, "files": files, **state}
        text = json.dumps({"checksum": checksum(whole), **whole}, indent=1)
        (draft / _STATE).write_text(text)
        for file in [*beside, draft / _STATE]:
            sync(file)
        sync(draft)
        if final.exists():
            shutil.rmtree(final)
        draft.rename(final)
        sync(self.path)
        return final

    def read_state(self, step: int) -> dict[str, Any]:
        """Returns the state of a checkpoint, after checking the files beside it.

        Raises:
            ValueError: If a file is damaged.
        """
        path = self.of_step(step)
        try:
            state: dict[str, Any] = json.loads((path / _STATE).read_text())
            expected, files = state.pop("checksum"), state["files"]
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"'{path / _STATE}' is damaged: expected JSON with the keys 'checksum' "
                f"and 'files'. Received: {error}. {self.way_back(step)}"
            ) from error
        if state.get("version") != _VERSION:
            raise ValueError(
                f"'{path}' has version {state.get('version')} of the format; this "
                f"tfctr reads version {_VERSION}."
            )
        if (found := checksum(state)) != expected:
            raise ValueError(
                f"'{path / _STATE}' is damaged: expected SHA-256 {expected}. "
                f"Received: {found}. {self.way_back(step)}"
            )
        for name, expected in files.items():
            found = file_sha256(path / name) if (path / name).exists() else "no file"
            if found != expected:
                raise ValueError(
                    f"'{path / name}' is damaged: expected SHA-256 {expected}. "
                    f"Received: {found}. {self.way_back(step)}"
                )
        return state

    def way_back(self, step: int) -> str:
        """Returns what to do if the checkpoint of a step is damaged."""
        older = [other for other in self.steps() if other < step]
        if not older:
            return "There is no older checkpoint."
        return (
            f"The checkpoint before it is '{self.of_step(older[-1])}': remove "
            f"'{self.of_step(step)}' to go back to it."
        )

    def remove(self, step: int) -> None:
        """Removes the checkpoint of a step; at no moment is half of it there."""
        draft = self.path / f"step-{step:012d}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        self.of_step(step).rename(draft)
        shutil.rmtree(draft)
