"""The loop of progressive training: test on a window, then train on it."""

import datetime
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfctr import builders, distributed, training
from tfctr.callbacks import TrainingGuard, TrainingReport
from tfctr.config import TrainConfig
from tfctr.data import TimedLog, TimeWindow
from tfctr.data.time_column import NANOSECONDS
from tfctr.data.window_log import WindowLog
from tfctr.distributed import engine
from tfctr.progressive.popularity import Popularity
from tfctr.progressive.progress import Progress
from tfctr.progressive.saved_run import SavedRun, checksum, same_windows
from tfctr.progressive.scored import Scored, mean_of


def _print(line: str) -> None:
    print(line, flush=True)  # A file or a pipe gets them all at the end otherwise.


def train(
    config: TrainConfig, tell: Callable[[str], None] = _print
) -> tuple[keras.Model, dict[str, Any]]:
    """Goes once through a log in the order of time, each example tested on first.

    A window of time is predicted by the model that was trained on all windows before
    it, and then trained on, shuffled. Beside it stand the baselines of `Popularity`,
    where `progressive.item` is named: they know the clicks before the window.

    Args:
        config: `TrainConfig`.
        tell: Function that gets a line about each day, and where a run goes on.

    Returns:
        The model, and a JSON-able dict. Its `windows` and `days`, of 24 hours from the
        beginning of the first window, are lists of dicts: `start`, `examples`, `clicks`
        and `tested_examples`, and over the latter `auc`, `log_loss`, and `NAME_auc` of
        each baseline, `None` for want of clicks or non-clicks. A window also has
        `table_rows` at its end; `new_rows` and `expired_rows` in it; `refused_lookups`
        of ids that were not admitted, and `waiting_ids` that are counted one by one;
        `table_bytes`, `admission_bytes`, the `memory_bytes` of the processes, its
        `seconds`, and the `train_seconds` of them. `auc`, `log_loss` and `NAME_auc` of
        the whole are means over the windows, each weighing its tested examples.
        `examples_per_second` is that of training, over all windows of this process
        but its first, which traces the model; 0 if there is no other. The rest is as
        in `training.train`.

    With `progressive.checkpoint_every`, a run that an earlier process began in
    `run.directory` goes on behind the window that was saved last, and its result is
    that of one process, but for times, memory and what tables count in a process.

    Raises:
        ValueError: If the config asks for what does not exist, a row lies before the
            one above it in time, the training goes astray (see `TrainingGuard`), or a
            run that goes on is not that of the config and the log.
        OSError: If the data cannot be read, or a checkpoint cannot be written.
        tf.errors.OpError: If a table cannot take a step.
    """
    distributed.init()
    training.make_directory(config)
    keras.utils.set_random_seed(config.run.seed)
    log = builders.open_timed_log(config)
    model = builders.build_model(config, log)
    model.compile(
        builders.build_optimizer(config, log),
        "binary_crossentropy",
        steps_per_execution=config.run.steps_per_execution,
    )
    saved = SavedRun(config)
    try:
        progress, first = _train(model, log, config, saved, tell)
    finally:
        saved.close()
    windows, days = progress.windows, progress.days
    names = [name for name in days[0] if name.endswith(("auc", "log_loss"))]
    return model, {
        **_plain(mean_of(windows, names)),
        "examples_per_second": _examples_per_second(windows[first + 1 :]),
        **training.count_tables(model),
        "peak_memory_bytes": training.peak_memory(),
        "ranks": distributed.size(),
        **training.count_merges(model.optimizer),
        "days": [_plain(day) for day in days],
        "windows": [_plain(window) for window in windows],
        "config": config.to_dict(),
    }


def _train(
    model: keras.Model,
    log: TimedLog,
    config: TrainConfig,
    saved: SavedRun,
    tell: Callable[[str], None],
) -> tuple[Progress, int]:
    """Tests and trains on one window after the other.

    Returns:
        How they went, and how many of them an earlier process has done.
    """
    reports = [TrainingReport(config.run.directory)] if config.run.report else []
    asked = config.progressive
    pool_seconds = asked.pool_seconds if asked.negatives else None
    popularity = Popularity(asked.recent_seconds, pool_seconds) if log.item else None
    progress, step = saved.begin(model)
    first = len(progress.windows)
    if first:
        _tell(tell, f"goes on behind the {first:,} windows of an earlier run")
    windows = log.windows(asked.window_seconds)
    for window in same_windows(progress, windows):
        _note_clicks(popularity, window)
    for window in windows:
        number = len(progress.windows)
        if number == first:
            _trace_prediction(model, window.log)
        entry, scored = _go_through(model, window, config, popularity, reports, number)
        step += window.log.steps_per_epoch("train", config.run.batch_size)
        if progress.add(entry, scored, checksum(window)) is not None:
            _tell(tell, _line(progress.days))
        saved.save(model, progress, step)
    saved.end(model, progress, step)
    progress.end_day()
    _tell(tell, _line(progress.days))
    for report in reports:
        report.draw_page()
    return progress, first


def _go_through(
    model: keras.Model,
    window: TimeWindow,
    config: TrainConfig,
    popularity: Popularity | None,
    reports: Sequence[TrainingReport],
    number: int,
) -> tuple[dict[str, Any], Scored]:
    """Tests on a window, trains on it, and returns how both went."""
    before = _table_sums(model)
    started = time.perf_counter()
    scored = _test(model, window, popularity)
    metrics = scored.metrics()
    tested = time.perf_counter()
    for report in reports:
        report.begin_window(number, window.start / NANOSECONDS["s"], metrics)
    training.fit(model, window.log, config, [TrainingGuard(), *reports], verbose=0)
    trained = time.perf_counter()
    _note_clicks(popularity, window)
    entry = {**_what(window), **metrics, **_growth(before, _table_sums(model))} | {
        "memory_bytes": _resident_bytes(),
        "seconds": time.perf_counter() - started,
        "train_seconds": trained - tested,
    }
    return entry, scored


def _trace_prediction(model: keras.Model, log: WindowLog) -> None:
    """Has the model predict batches of two sizes, so that it is traced for all.

    What is traced for one size may round otherwise, and which size comes first depends
    on where a process begins.
    """
    for size in (1, 2):
        examples = log.examples.take(np.zeros(size, np.int64))
        batches = WindowLog(log.features, examples).batches("train", size)
        for inputs, _ in batches:
            model.predict_on_batch(inputs)


def _tell(tell: Callable[[str], None], line: str) -> None:
    if distributed.is_main():
        tell(line)


def _note_clicks(popularity: Popularity | None, window: TimeWindow) -> None:
    if popularity is not None:
        is_click = window.labels == 1
        popularity.add(window.times[is_click], window.items[is_click])


def _test(
    model: keras.Model, window: TimeWindow, popularity: Popularity | None
) -> Scored:
    log_labels = window.labels[window.is_tested]
    labels, probabilities = log_labels, np.zeros(0, np.float32)
    if len(log_labels):
        labels, probabilities = training.predict_split(model, window.tested, "train")
    baselines = {}
    if popularity is not None:
        items = window.items[window.is_tested]
        baselines = popularity.scores(window.start, items)
    return Scored(labels, probabilities, log_labels, baselines)


def _what(window: TimeWindow) -> dict[str, Any]:
    return {
        "start": window.start,
        "examples": len(window.labels),
        "clicks": int(window.labels.sum()),
        "tested_examples": int(window.is_tested.sum()),
    }


def _examples_per_second(windows: Sequence[Mapping[str, Any]]) -> float:
    seconds = sum(window["train_seconds"] for window in windows)
    examples = sum(window["examples"] for window in windows)
    return examples / seconds if seconds else 0.0


def _table_sums(model: keras.Model) -> dict[str, int]:
    """The counts of all tables together."""
    tables = training.count_tables(model)["tables"].values()
    names = {name for table in tables for name in table}
    return {name: sum(table[name] for table in tables) for name in names}


def _growth(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    grown = {name: now[name] - before.get(name, 0) for name in now}
    return {
        "table_rows": now["known_rows"],
        "new_rows": grown["known_rows"] + grown["expired_rows"],
        "expired_rows": grown["expired_rows"],
        "refused_lookups": grown["refused_keys"],
        "waiting_ids": now["tracked_keys"],
        "table_bytes": now["memory_bytes"],
        "admission_bytes": now["admission_bytes"],
    }


def _line(days: Sequence[Mapping[str, Any]]) -> str:
    number, day = len(days), days[-1]
    baselines = ", ".join(
        f"{name.removesuffix('_auc')} {value:.4f}"
        for name, value in day.items()
        if name.endswith("_auc")
    )
    return (
        f"day {number}: {day['clicks']:,} clicks, AUC {day['auc']:.4f}"
        f"{f' ({baselines})' if baselines else ''}, log loss {day['log_loss']:.4f}, "
        f"{day['table_rows']:,} rows"
    )


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what JSON can hold: `None` for NaN, and the start as a text."""
    plain: dict[str, Any] = {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in entry.items()
    }
    if "start" in plain:
        start = plain["start"] / NANOSECONDS["s"]
        moment = datetime.datetime.fromtimestamp(start, datetime.UTC)
        plain["start"] = moment.isoformat()
    return plain


def _resident_bytes() -> int:
    """Returns what the ranks' processes hold in memory now, together."""
    with open("/proc/self/statm") as file:
        own = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return int(sum(engine.gather_objects(own, "progressive.memory")))
