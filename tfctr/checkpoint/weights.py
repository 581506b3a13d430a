"""What a model predicts with, from a checkpoint."""

import os
import pathlib

import keras

from keras_layers.dynamic_embedding import layers_of
from tfctr.checkpoint.dense_state import read_dense
from tfctr.checkpoint.directory import CheckpointDirectory


def restore_weights(model: keras.Model, path: str | os.PathLike[str]) -> int:
    """Sets tables and dense weights to those of a checkpoint, and returns its step.

    However many ranks have saved it. Dense weights that differ from rank to rank become
    their mean.

    Args:
        model: Built Keras model, as it was trained; it need not be compiled.
        path: Path of one checkpoint, or of a directory of them: the newest.

    Raises:
        ValueError: If there is no checkpoint, it is damaged, or of another model.
    """
    directory, step = _find(pathlib.Path(path))
    state = directory.read_state(step)
    found, layers = directory.of_step(step), layers_of(model)
    names = [layer.name for layer in layers]
    if len(names) != len(state["layers"]):
        raise ValueError(
            f"'{found}' was saved from a model with the layers {state['layers']}. "
            f"Received: model '{model.name}' with {names}. Build the model as it was "
            "when the checkpoint was made."
        )
    for index, layer in enumerate(layers):
        layer.restore_snapshot(found / f"layer-{index}")
    # After the tables, whose step counters are variables of the model too.
    read_dense(sorted(found.glob("dense*.npz")), model, with_optimizer=False)
    return step


def _find(path: pathlib.Path) -> tuple[CheckpointDirectory, int]:
    """Returns where a checkpoint is, and of which step."""
    directory = CheckpointDirectory(path)
    if steps := directory.steps():
        return directory, steps[-1]
    above = CheckpointDirectory(path.absolute().parent)
    for step in above.steps():
        if above.of_step(step).name == path.name:
            return above, step
    raise ValueError(
        "There must be a checkpoint of tfctr.callbacks.Checkpoint: 'step-...', or the "
        f"directory of them. Received: '{path}', which is none."
    )
