"""Trains a model from a `TrainConfig`, and says how it went."""

import json
import os
import pathlib
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from keras_layers import DynamicEmbedding
from keras_layers.storage.byte_size import format_bytes
from tfctr import distributed
from tfctr.builders import build_model, build_optimizer, open_log
from tfctr.callbacks import (
    KStepMerge,
    Throughput,
    TrainingReport,
    check_callbacks,
)
from tfctr.config import TrainConfig
from tfctr.data import ClickLog, Position, SyntheticClickLog
from tfctr.distributed import engine
from tfctr.metrics import auc, log_loss
from tfctr.models.static_embedding import StaticEmbedding
from tfctr.optimizers import KStepAdam

_EVALUATION_BATCH = 8192


def train(config: TrainConfig) -> tuple[keras.Model, dict[str, Any]]:
    """Trains, and evaluates on the whole test split. `save` keeps the model.

    Under `horovodrun`, all ranks train one model: each takes its part of every batch,
    dynamic tables are sharded, and every rank returns the result of all.

    Args:
        config: `TrainConfig`.

    Returns:
        The model, and a JSON-able dict: `auc`, `log_loss`, `examples_per_second`,
        `rows`, `best_auc` and `best_log_loss` where the teacher is known,
        `table_bytes`, `tables`, `peak_memory_bytes`, `ranks` and the `config`, and with
        `k_step` the `merges` and `merge_bytes` of `KStepAdam`. What is counted or in
        memory is that of all ranks together.

    Raises:
        ValueError: If the config asks for what does not exist, the test split is too
            small to be judged by, or the training goes astray (see `TrainingGuard`).
        OSError: If the data cannot be read.
        tf.errors.OpError: If a table cannot take a step, for example since its budget
            is used up.
    """
    if config.run.mode != "epochs":
        raise ValueError(
            "Training by epochs needs run.mode='epochs'. Received: "
            f"run.mode={config.run.mode!r}, which `tfctr train` alone knows. Leave it "
            "out."
        )
    distributed.init()
    make_directory(config)
    reports = [TrainingReport(config.run.directory)] if config.run.report else []
    keras.utils.set_random_seed(config.run.seed)
    log = open_log(config)
    _check_test_split(log, config)
    model = build_model(config, log)
    model.compile(
        build_optimizer(config, log),
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
        steps_per_execution=config.run.steps_per_execution,
    )
    throughput = Throughput(config.run.batch_size)
    check_callbacks([throughput], model)
    for epoch in range(config.run.epochs):
        _fit_epoch(model, log, config, epoch, [*reports, throughput])
    labels, probabilities = predict_split(model, log, "test")
    result = {
        "auc": auc(labels, probabilities),
        "log_loss": log_loss(labels, probabilities),
        "examples_per_second": throughput.examples_per_second,
        **_best_reachable(log),
        **count_tables(model),
        "peak_memory_bytes": peak_memory(),
        "ranks": distributed.size(),
        **count_merges(model.optimizer),
        "config": config.to_dict(),
    }
    return model, result


def save(model: keras.Model, config: TrainConfig) -> pathlib.Path:
    """Saves model and config in `run.directory`, and returns the path of the model.

    What an earlier run saved there stays whole until the new file is. All ranks must
    call it.

    Raises:
        ValueError: If the tables are larger than what their layer may save.
        OSError: If a file cannot be written.
    """
    directory = pathlib.Path(config.run.directory)
    text = json.dumps(config.to_dict(), indent=2)
    _replace(
        directory / "model.keras", lambda path: distributed.save_model(model, path)
    )
    if distributed.is_main():
        _replace(directory / "config.json", lambda path: path.write_text(text))
    return directory / "model.keras"


def predict_split(
    model: keras.Model, log: ClickLog, split: str
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Returns labels and predicted probabilities of a whole split, each `(n,)`.

    The ranks share the examples out, and each returns those of all, rank by rank.
    """
    labels, probabilities = [], []
    batches = log.batches(split, _EVALUATION_BATCH)
    for batch in distributed.shard(batches, training=False):
        inputs, label, weights = keras.utils.unpack_x_y_sample_weight(batch)
        probability = model.predict_on_batch(inputs)[:, 0]
        # An example of weight 0 is another rank's.
        own = np.ones(len(label), bool) if weights is None else weights.numpy() > 0
        labels.append(label.numpy()[own])
        probabilities.append(probability[own])
    return (
        np.asarray(engine.all_gather(np.concatenate(labels), "predicted.labels")),
        np.asarray(
            engine.all_gather(np.concatenate(probabilities), "predicted.probabilities")
        ),
    )


def report(result: dict[str, Any]) -> str:
    """Returns a few lines that say how a training run went."""
    best = result.get("best_auc")
    of_best = f"   (best reachable {best:.4f})" if best is not None else ""
    best_loss = result.get("best_log_loss")
    of_best_loss = f"   (best reachable {best_loss:.4f})" if best_loss else ""
    lines = {
        "test AUC": f"{result['auc']:.4f}{of_best}",
        "test log loss": f"{result['log_loss']:.4f}{of_best_loss}",
        "throughput": f"{result['examples_per_second']:,.0f} examples/s",
        "rows": f"{result['rows']:,}",
        "memory": f"{format_bytes(result['peak_memory_bytes'])} at the peak, of which "
        f"{format_bytes(result['table_bytes'])} tables",
    }
    return "\n".join(f"  {name:<14}{text}" for name, text in lines.items())


def make_directory(config: TrainConfig) -> None:
    """Finds out before the training, not after it, whether its result has a place."""
    directory = pathlib.Path(config.run.directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            "'run.directory' must be a directory, or a place to make one. Received: "
            f"run.directory={config.run.directory!r} ({error.strerror})."
        ) from error


def _check_test_split(log: ClickLog, config: TrainConfig) -> None:
    """Finds out before the training, not after it, whether there will be an AUC."""
    if log.num_examples("test") == 0:
        raise ValueError(
            "A training must have a test split, by which the model is judged. "
            f"Received: none of {log.num_examples('train')} examples, with "
            f"data.test_share={config.data.test_share}. Set data.test_share to 0.1, "
            "for example, or data.test_path, or use a larger log."
        )
    clicks = examples = 0
    for _, labels in log.batches("test", _EVALUATION_BATCH):
        clicks += int(np.sum(labels))
        examples += len(labels)
        if 0 < clicks < examples:
            return
    raise ValueError(
        "The test split must hold clicks and non-clicks, which AUC compares. "
        f"Received: {clicks} clicks among {examples} examples. Use a larger log."
    )


def _fit_epoch(
    model: keras.Model,
    log: ClickLog,
    config: TrainConfig,
    epoch: int,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    # One epoch a call: of a data set with several, Keras reads `steps_per_execution`
    # batches at a time, across the borders of the epochs and beyond the end.
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", True)
    )
    fit(
        model,
        log,
        config,
        [*callbacks, stop],
        epoch=epoch,
        epochs=config.run.epochs,
        verbose=_verbosity(),
    )


def fit(
    model: keras.Model,
    log: ClickLog,
    config: TrainConfig,
    callbacks: Sequence[keras.callbacks.Callback],
    epoch: int = 0,
    **options: Any,
) -> None:
    """Trains on one epoch of the train split, with what several ranks need.

    Args:
        model: Compiled Keras model.
        log: `ClickLog`.
        config: `TrainConfig`.
        callbacks: Keras callbacks, after those of the ranks.
        epoch: Integer. Number of the epoch, from 0.
        options: Of `model.fit`.
    """
    batches = log.batches(
        "train",
        config.run.batch_size,
        seed=config.run.seed,
        position=Position(epoch),
        epochs=epoch + 1,
    )
    dataset = distributed.shard(batches).prefetch(2)
    for callback in callbacks:
        if isinstance(callback, TrainingReport):
            dataset = callback.watch(dataset)
    model.fit(
        dataset,
        initial_epoch=epoch,
        shuffle=False,  # The log shuffles by itself, and can resume.
        callbacks=[
            distributed.BroadcastCallback(),
            distributed.MetricAverage(),
            *([KStepMerge()] if config.run.k_step else []),
            *callbacks,
        ],
        **options,
    )


def _verbosity() -> int:
    """Of Keras: a bar for people, a line per epoch for files, and one rank tells."""
    if not distributed.is_main():
        return 0
    return 1 if sys.stdout.isatty() else 2


def count_merges(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """How often the ranks have merged their dense weights, and what a merge sends."""
    if not isinstance(optimizer, KStepAdam):
        return {}
    return {"merges": optimizer.merges, "merge_bytes": optimizer.merge_bytes}


def _best_reachable(log: ClickLog) -> dict[str, float]:
    """Scores the true probabilities, where the log knows them."""
    if not isinstance(log, SyntheticClickLog):
        return {}
    labels, probabilities = log.labels("test"), log.probabilities("test")
    return {
        "best_auc": auc(labels, probabilities),
        "best_log_loss": log_loss(labels, probabilities),
    }


def count_tables(model: keras.Model) -> dict[str, Any]:
    """Returns `rows`, `table_bytes` and the `tables`' counts, of all ranks together."""
    own = {
        f"{layer.name}/{name}": stats
        for layer in model.layers
        if isinstance(layer, DynamicEmbedding)
        for name, stats in layer.stats().items()
    }
    of_ranks = engine.gather_objects(own, "result.tables")
    tables = {name: _sum_stats([stats[name] for stats in of_ranks]) for name in own}
    static = [layer for layer in model.layers if isinstance(layer, StaticEmbedding)]
    static_bytes = sum(4 * layer.count_params() for layer in static)
    return {
        "rows": sum(layer.num_rows for layer in static)
        + sum(stats["known_rows"] for stats in tables.values()),
        "table_bytes": static_bytes * distributed.size()
        + sum(stats["memory_bytes"] for stats in tables.values()),
        "tables": tables,
    }


def _sum_stats(of_ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts of a table's shards together; some are the same on all ranks."""
    first = of_ranks[0]
    totals = {name: sum(stats[name] for stats in of_ranks) for name in first}
    totals |= {name: first[name] for name in ("step", "row_bytes")}
    share = totals["clipped_rows"] / max(totals["updated_rows"], 1)
    return {**totals, "clipped_share": share}


def peak_memory() -> int:
    """Returns the most bytes that the ranks' processes held, together."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(sum(engine.gather_objects(own, "result.memory")))


def _replace(path: pathlib.Path, write: Callable[[pathlib.Path], Any]) -> None:
    """Writes a file beside `path`, and gives it that name once it is complete.

    On rank 0; what `write` does on the others leaves no file.
    """
    partial = path.with_name(f"partial.{path.name}")
    if not distributed.is_main():
        write(partial)
        return
    try:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # The name must not reach the disk before the file.
        os.replace(partial, path)
    except OSError as error:
        raise OSError(
            f"'{path}' must be written to its end. Received: "
            f"{error.strerror or error}. Make room there, or set another "
            "run.directory; what an earlier run saved is as it was."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
