"""`TfraFiles`: the tables that TFRA has saved, read without TFRA."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Keys = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]

# A tensor of a checkpoint, and a file of de.FileSystemSaver: the name of the table, and
# which shard of it this is.
_TENSOR = re.compile(r"(?:.*/)?tables_of_([^/]+)/(\d+)/\.ATTRIBUTES/table-keys")
_FILE = re.compile(r"(.+)_mht_(\d+)of(\d+)_rank(\d+)_size(\d+)-keys")
_STEP = re.compile(r"(?:.*/)?(?:iter|_?iterations)/\.ATTRIBUTES/VARIABLE_VALUE")
# Where the saver writes, beside the checkpoint.
_FOLDER = "TFRADynamicEmbedding"


class TfraFiles:
    """The tables of a TFRA model, saved as a checkpoint, a SavedModel or files.

    Args:
        source: String. A checkpoint, or its directory; a SavedModel; or a directory
            that `de.FileSystemSaver` or `save_to_file_system` has written.

    Attributes:
        names: Of the tables, sorted; parts of a name are joined by `_`.
        step: Integer. How many steps the optimizer has made, or `None` if no checkpoint
            says so.

    Raises:
        ValueError: If there is none of these.
    """

    def __init__(self, source: str) -> None:
        self._reader = _open_checkpoint(source)
        self._tensors: dict[str, list[str]] = {}
        self._files: dict[str, list[pathlib.Path]] = {}
        self.step: int | None = None
        if self._reader is not None:
            self._find_tensors()
        for folder in _folders(source):
            self._find_files(folder)
        if self._reader is None and not self._files:
            raise ValueError(
                "There must be tables of TFRA to import: a checkpoint, a SavedModel, "
                "or a directory with '...-keys' and '...-values' files. "
                f"Received: '{source}', which is none of these."
            )

    @property
    def names(self) -> list[str]:
        return sorted({*self._tensors, *self._files})

    def read(self, name: str, dim: int) -> tuple[Keys, Values]:
        """Returns the keys `(n,)` of a table, ascending, and their values `(n, dim)`.

        Raises:
            ValueError: If they are of another width, or no integers and floats.
        """
        if name in self._tensors:
            parts = [self._read_tensors(key) for key in self._tensors[name]]
        else:
            parts = [_read_files(path, dim) for path in self._files[name]]
        for keys, values in parts:
            if keys.dtype.kind not in "iu" or values.dtype.kind not in "fV":
                raise ValueError(
                    "Tables of integer keys and of floats can be imported. Received: "
                    f"table '{name}' of {keys.dtype} keys and {values.dtype} values. "
                    "Leave it out."
                )
            if values.shape[1:] != (dim,):
                raise ValueError(
                    f"Table '{name}' must have rows of dim={dim}. "
                    f"Received: rows of dim={values.shape[-1]}. Say the width of the "
                    "table, --dim."
                )
        keys = np.concatenate([keys for keys, _ in parts]).astype(np.int64)
        values = np.concatenate([values.astype(np.float32) for _, values in parts])
        # The last of equal keys, as TFRA would load them.
        keys, last = np.unique(keys[::-1], return_index=True)
        return keys, values[::-1][last]

    def _find_tensors(self) -> None:
        shapes = self._reader.get_variable_to_shape_map()
        steps = [key for key in shapes if _STEP.fullmatch(key)]
        if len(steps) == 1:
            self.step = int(self._reader.get_tensor(steps[0]))
        for key in sorted(shapes):
            if match := _TENSOR.fullmatch(key):
                name = match[1].replace(".S", "/").replace("..", ".")
                self._tensors.setdefault(_flat(name), []).append(key)

    def _find_files(self, folder: pathlib.Path) -> None:
        layouts: dict[str, set[int]] = {}
        for path in sorted(folder.glob("*-keys")):
            if match := _FILE.fullmatch(path.name):
                name, num_parts = match[1], int(match[3]) * int(match[5])
            else:
                name, num_parts = path.name.removesuffix("-keys"), 1
                name = re.sub(r"_mht_1of1$", "", name)
            self._files.setdefault(name, []).append(path)
            layouts.setdefault(name, set()).add(num_parts)
        for name, counts in layouts.items():
            if counts != {len(self._files[name])}:
                raise ValueError(
                    f"Table '{name}' must have all the files of one save. Received: "
                    f"{len(self._files[name])} in '{folder}', whose names say that "
                    f"there are {' or '.join(map(str, sorted(counts)))}. Remove those "
                    "of other saves."
                )

    def _read_tensors(self, key: str) -> tuple[Any, Any]:
        values = key.removesuffix("-keys") + "-values"
        return self._reader.get_tensor(key), self._reader.get_tensor(values)


def _flat(name: str) -> str:
    return name.replace("/", "_")


def _open_checkpoint(source: str) -> Any:
    """The reader of a checkpoint, or `None` if there is none."""
    path = pathlib.Path(source)
    prefixes = [source, str(path / "variables" / "variables")]
    if path.is_dir() and (latest := tf.train.latest_checkpoint(source)):
        prefixes.append(latest)
    for prefix in prefixes:
        if pathlib.Path(f"{prefix}.index").is_file():
            return tf.train.load_checkpoint(prefix)
    return None


def _folders(source: str) -> Sequence[pathlib.Path]:
    """Where the files of `source` may be: the first of them that has any."""
    path = pathlib.Path(source)
    places = [path, path / _FOLDER, path / "variables" / _FOLDER, path.parent / _FOLDER]
    found = (place for place in places if any(place.glob("*-keys")))
    return [place for place in (next(found, None),) if place is not None]


def _read_files(path: pathlib.Path, dim: int) -> tuple[Keys, Values]:
    keys = np.fromfile(path, np.int64)
    other = path.with_name(path.name.removesuffix("-keys") + "-values")
    expected = len(keys) * dim * 4
    size = other.stat().st_size if other.exists() else 0
    if size != expected or path.stat().st_size != len(keys) * 8:
        raise ValueError(
            f"'{other}' must have {expected} bytes: dim={dim} floats of 4 bytes for "
            f"each of the {len(keys)} int64 keys in the file beside it. Received: "
            f"{size} bytes. Say the width of the table, --dim."
        )
    return keys, np.fromfile(other, np.float32).reshape(-1, dim)
