"""Exports what a training run has saved."""

import json
import os
import pathlib
from typing import Any

import keras

# Knows all classes of models, which are found by name when one is loaded.
from tfctr.builders import build_model, open_log, open_timed_log
from tfctr.checkpoint import restore_weights
from tfctr.config import TrainConfig
from tfctr.export import saved_model


def export(
    checkpoint: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    config: str | None = None,
    num_examples: int = 0,
    **options: Any,
) -> pathlib.Path:
    """Exports a saved model, or a checkpoint; see `tfctr.export.saved_model`.

    Args:
        checkpoint: Path of a `.keras` file; of the directory of a run, with
            `model.keras` in it; or of a checkpoint, or the directory of them, of
            which the newest is taken.
        directory: Path of the export.
        config: Path of the TOML file that the run was started with: a checkpoint does
            not say of what model it is. `None` takes what the run has kept.
        num_examples: Integer. How many rows of the test split, or of the first window
            of a progressive run, the export keeps.
        **options: Of `saved_model`.

    Raises:
        ValueError: If there is no such model, or a config is missing.
    """
    path = pathlib.Path(checkpoint)
    if num_examples < 0:
        raise ValueError(
            "`num_examples` must be an integer that is not negative. "
            f"Received: num_examples={num_examples}."
        )
    file = path / "model.keras" if path.is_dir() else path
    settings = _settings(config, file.with_name("config.json"))
    if file.is_file():
        model = keras.saving.load_model(file, compile=False)
    elif not path.is_dir():
        raise ValueError(
            "There must be a .keras file, the directory of a run or a checkpoint to "
            f"export. Received: '{path}', which does not exist."
        )
    else:
        settings = _needed(settings, path, "the model")
        model = build_model(settings, open_log(settings))
        restore_weights(model, path)
    examples = None
    if num_examples > 0:
        examples = _examples(_needed(settings, path, "the data"), num_examples)
    return saved_model(model, directory, examples=examples, **options)


def _examples(config: TrainConfig, num_examples: int) -> Any:
    """Returns the first rows of the test split, or of the first window."""
    if config.run.mode == "progressive":
        windows = open_timed_log(config).windows(config.progressive.window_seconds)
        batches = next(windows).log.batches("train", num_examples)
    else:
        batches = open_log(config).batches("test", num_examples)
    examples, _ = next(iter(batches))
    return examples


def _settings(config: str | None, kept: pathlib.Path) -> Any:
    if config is not None:
        return TrainConfig.load(config)
    if kept.is_file():
        return TrainConfig.from_dict(json.loads(kept.read_text()))
    return None


def _needed(settings: Any, path: pathlib.Path, what: str) -> TrainConfig:
    if isinstance(settings, TrainConfig):
        return settings
    raise ValueError(
        f"'{path}' does not say by what config it was trained, which names {what}. "
        "Received: config=None. Name the TOML file: --config FILE."
    )
