"""The variables of an export as arrays by name, where there is no model."""

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

VARIABLES = "variables"
Array = npt.NDArray[Any]


class VariableFiles:
    """Reads the variables that a directory holds.

    Args:
        directory: Path of an export, or of a delta.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.names: list[str] = []
        # A delta may have none.
        if (directory / VARIABLES / f"{VARIABLES}.index").exists():
            prefix = str(directory / VARIABLES / VARIABLES)
            self._reader = tf.train.load_checkpoint(prefix)
            self.names = sorted(self._reader.get_variable_to_shape_map())

    def read(self, name: str) -> Array:
        """Returns a variable; strings as objects."""
        value = self._reader.get_tensor(name)
        # Strings of a fixed width would lose the zeros at their end.
        return np.asarray(value, object if isinstance(value, bytes) else None)


def write_variables(directory: pathlib.Path, variables: Mapping[str, Array]) -> None:
    """Writes variables as `tf.saved_model.save` does, in one file.

    Args:
        directory: Path of an export, or of a delta.
        variables: Arrays by name, in the order in which they are written.
    """
    (directory / VARIABLES).mkdir(parents=True)
    if not variables:  # TensorFlow writes no such file.
        return
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=str(directory / VARIABLES / VARIABLES),
            tensor_names=list(variables),
            shape_and_slices=[""] * len(variables),
            tensors=[tf.convert_to_tensor(array) for array in variables.values()],
        )


def digest(array: Array) -> str:
    """Returns the SHA-256 of an array: of its type, shape and bytes."""
    sha = hashlib.sha256(f"{array.dtype} {array.shape} ".encode())
    if array.dtype == object:
        for text in array.ravel().tolist():
            sha.update(b"%d " % len(text) + text)
    else:
        sha.update(bytes_of(array).data)
    return sha.hexdigest()


def bytes_of(array: Array) -> npt.NDArray[np.uint8]:
    """Returns the bytes of numbers, `(n, bytes of a row)`, or of one number `(1, b)`.

    Equal bytes are what "equal" means here: NaN is, and 0 is not -0.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rows = len(array) if array.ndim else 1
    return flat.reshape(rows, array.nbytes // max(rows, 1))
