"""The variables of a model and of its optimizer, as one file."""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np


def collect(model: keras.Model) -> dict[str, Any]:
    """Returns copies of all variables, by owner, place and path.

    The tables' rows are no variables, and are not among them.
    """
    named = [("model", variable) for variable in model.variables]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        named += [("optimizer", variable) for variable in optimizer.variables]
    return {
        # Names that Keras counts up ("dense_1") differ from process to process.
        f"{index:05d} {owner}": keras.ops.convert_to_numpy(variable).copy()
        for index, (owner, variable) in enumerate(named)
    }


def write_dense(path: pathlib.Path, arrays: dict[str, Any]) -> None:
    """Writes what `collect` returned."""
    with path.open("wb") as file:
        np.savez(file, **arrays)


def read_dense(
    paths: Sequence[pathlib.Path], model: keras.Model, with_optimizer: bool = True
) -> None:
    """Sets all variables of the model and its optimizer to those of a file.

    Or of the model alone, which need not be compiled then. Where ranks have each saved
    their own, and there are now others, to their means.

    Raises:
        ValueError: If they do not fit. Nothing was set.
    """
    path, *others = paths
    saved = _load(path)
    for number, other in enumerate(others, 2):
        for name, array in _load(other).items():
            if name in saved and np.issubdtype(array.dtype, np.floating):
                # Of equal ones exactly the same.
                saved[name] += (array - saved[name]) / number
    present = collect(model)
    if not with_optimizer:
        saved, present = _of_model(saved), _of_model(present)
    problem = _difference(saved, present)
    if problem:
        raise ValueError(
            f"'{path}' does not fit model '{model.name}'. Expected: {problem[0]}. "
            f"Received: {problem[1]}. Build and compile the model as it was when the "
            "checkpoint was made."
        )
    optimizer = getattr(model, "optimizer", None)
    variables = list(model.variables) + list(optimizer.variables if optimizer else [])
    # Those of the model come first.
    for variable, value in zip(variables, saved.values(), strict=with_optimizer):
        variable.assign(value)


def _of_model(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if name.endswith(" model")}


def _load(path: pathlib.Path) -> dict[str, Any]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _difference(
    saved: dict[str, Any], present: dict[str, Any]
) -> tuple[str, str] | None:
    if list(saved) != list(present):
        return f"{len(present)} variables", f"{len(saved)}"
    for name, array in present.items():
        if saved[name].shape != array.shape or saved[name].dtype != array.dtype:
            return (
                f"variable {name} of shape {array.shape}, {array.dtype}",
                f"{saved[name].shape}, {saved[name].dtype}",
            )
    return None
