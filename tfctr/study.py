"""The large-batch study: how well networks train as batches grow, rule by rule."""

import concurrent.futures
import csv
import dataclasses
import importlib
import io
import json
import math
import multiprocessing
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfctr.config import TrainConfig

RULES = ("none", "sqrt", "linear", "cowclip")
COLUMNS = (
    "network",
    "batch_size",
    "rule",
    "auc",
    "log_loss",
    "minutes",
    "clipped_share",
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training run of a study.

    Args:
        network: String. As `model.name` of the config.
        batch_size: Integer.
        rule: String. By which the config's hyperparameters are scaled to it.
    """

    network: str
    batch_size: int
    rule: str


def large_batch(
    config: TrainConfig,
    batch_sizes: Sequence[int],
    rules: Sequence[str] = RULES,
    networks: Sequence[str] = (),
    output: str | pathlib.Path | None = None,
    tell: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Trains networks at all batch sizes by all rules, each in a process of its own.

    What is done already stands in the CSV file, which is written after each run: the
    same call goes on where an earlier one was interrupted. Beside it, at the end, are
    a table (`.md`) and a plot (`.svg`).

    The hyperparameters of `config` are for its own `run.batch_size`. The rules
    `"none"`, `"sqrt"` and `"linear"` train without clipping and without warm-up, as
    the paper's baselines do; `"cowclip"` with those of the config. All else is equal.

    Args:
        config: `TrainConfig`. Its `tables.clip_ratio` must not be 0.
        batch_sizes: Integers, multiples of `run.batch_size`.
        rules: Strings. Of `RULES`.
        networks: Strings. `model.name`s; none means that of the config.
        output: Path of the CSV file. `None` means
            `benchmarks/large_batch_DATASET.csv`.
        tell: Function that gets a line about each run.

    Returns:
        The rows of the file, dicts with the keys `COLUMNS`. The `auc` and `log_loss`
        of a training whose gradients left all bounds are NaN.

    Raises:
        ValueError: If an argument is none of these, the file is of another config, or
            matplotlib is missing.
        OSError: If a file cannot be written.
    """
    networks = list(networks) or [config.model.name]
    path = pathlib.Path(output or f"benchmarks/large_batch_{config.data.kind}.csv")
    cells = [
        Cell(network, size, rule)
        for network in networks
        for size in batch_sizes
        for rule in rules
    ]
    _check_matplotlib()
    # All of them at once: a mistake in the last is found before the first is trained.
    configs = {cell: scale_config(config, cell) for cell in cells}
    rows = _open(path, config)
    done = {_cell_of(row) for row in rows}
    for number, cell in enumerate(cells, start=1):
        what = f"[{number}/{len(cells)}] {cell.network}, {cell.batch_size}, {cell.rule}"
        if cell in done:
            tell(f"{what}: done before")
            continue
        row = {**dataclasses.asdict(cell), **_train_apart(configs[cell])}
        rows.append(row)
        _write(path, _to_csv(rows))
        tell(
            f"{what}: AUC {row['auc']:.4f}, log loss {row['log_loss']:.4f}, "
            f"{row['minutes']:.1f} minutes, {row['clipped_share']:.2%} of rows clipped"
        )
    _write(path.with_suffix(".md"), table(rows))
    _plot(rows, path.with_suffix(".svg"))
    return rows


def scale_config(config: TrainConfig, cell: Cell) -> TrainConfig:
    """Returns the config of one run of a study; see `large_batch`."""
    from tfctr.optimizers import Hyperparameters, scale_hyperparameters

    if cell.rule not in RULES:
        raise ValueError(
            f"--rules must be of {', '.join(RULES)}. Received: {cell.rule!r}."
        )
    base = config.run.batch_size
    if cell.batch_size < 1 or cell.batch_size % base:
        raise ValueError(
            f"--batch-sizes must be multiples of run.batch_size={base}, for which the "
            f"learning rates of the config are. Received: {cell.batch_size}."
        )
    if not config.tables.clip_ratio:
        raise ValueError(
            "The config of a study must say how the rule 'cowclip' clips. Received: "
            "tables.clip_ratio=0. Set it to 1, as in the paper, and tables.clip_floor."
        )
    scaled = scale_hyperparameters(
        cell.rule,
        cell.batch_size / base,
        Hyperparameters(
            base,
            config.tables.learning_rate,
            config.run.learning_rate,
            config.tables.l2,
        ),
    )
    clips = cell.rule == "cowclip"
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, name=cell.network),
        tables=dataclasses.replace(
            config.tables,
            learning_rate=scaled.embedding_learning_rate,
            l2=scaled.l2,
            clip_ratio=config.tables.clip_ratio if clips else 0.0,
        ),
        run=dataclasses.replace(
            config.run,
            batch_size=scaled.batch_size,
            learning_rate=scaled.dense_learning_rate,
            warmup_epochs=config.run.warmup_epochs if clips else 0.0,
        ),
    )


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Returns the AUCs as a Markdown table: a line per network and rule."""
    auc = {_cell_of(row): row["auc"] for row in rows}
    shares = {_cell_of(row): row["clipped_share"] for row in rows}
    sizes = sorted({cell.batch_size for cell in auc})
    lines = [
        "| network | rule | " + " | ".join(map(str, sizes)) + " |",
        "|---|---|" + "---|" * len(sizes),
    ]
    for network, rule in dict.fromkeys((cell.network, cell.rule) for cell in auc):
        cells = [Cell(network, size, rule) for size in sizes]
        texts = [
            ("diverged" if math.isnan(auc[cell]) else f"{auc[cell]:.4f}")
            if cell in auc
            else ""
            for cell in cells
        ]
        lines.append(f"| {network} | {rule} | {' | '.join(texts)} |")
        if rule == "cowclip":
            texts = [f"{shares[cell]:.2%}" if cell in shares else "" for cell in cells]
            lines.append(f"| | rows clipped | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _check_matplotlib() -> None:
    """It is needed at the very end: its absence must not be found there."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise ValueError(
            "A study draws its plot with matplotlib. Received: an environment without "
            f"it ({error}). Install it: pip install 'tfctr[study]'."
        ) from error


def _train_apart(config: TrainConfig) -> dict[str, float]:
    """Trains in a process of its own, which gives all its memory back."""
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        return pool.submit(_train, config).result()


def _train(config: TrainConfig) -> dict[str, float]:
    import tensorflow as tf

    from tfctr import training
    from tfctr.callbacks import TrainingDiverged

    started = time.monotonic()
    diverged = {"auc": math.nan, "log_loss": math.nan, "clipped_share": math.nan}
    try:
        _, result = training.train(config)
    except TrainingDiverged:
        result = diverged
    except tf.errors.InvalidArgumentError as error:
        if "received a gradient that is NaN" not in error.message:
            raise
        result = diverged
    else:
        vectors = result["tables"].get("vectors/vectors", {})
        result["clipped_share"] = vectors.get("clipped_share", 0.0)
    minutes = (time.monotonic() - started) / 60
    return {
        "auc": float(result["auc"]),
        "log_loss": float(result["log_loss"]),
        "minutes": minutes,
        "clipped_share": float(result["clipped_share"]),
    }


def _open(path: pathlib.Path, config: TrainConfig) -> list[dict[str, Any]]:
    """Returns the rows of an earlier run of the same study, if there was one.

    The config stands beside the CSV file: rows of two configs are not to be compared.
    """
    # Where things are does not change results.
    own: dict[str, Any] = config.to_dict()
    del own["data"]["path"], own["run"]["directory"], own["model"]["name"]
    own = json.loads(json.dumps(own))  # With lists for tuples, as it is read.
    beside = path.with_suffix(".json")
    if not path.exists():
        _write(beside, json.dumps(own, indent=2) + "\n")
        return []
    earlier = json.loads(beside.read_text()) if beside.exists() else {}
    for section, entries in own.items():
        for key, value in entries.items():
            before = earlier.get(section, {}).get(key)
            if before != value:
                raise ValueError(
                    f"The study in '{path}' must go on with its own config, which "
                    f"stands in '{beside}': {section}.{key}={before!r}. Received: "
                    f"{section}.{key}={value!r}. Name another --output, or remove "
                    "both files."
                )
    with path.open(newline="") as file:
        return [
            {
                "network": row["network"],
                "batch_size": int(row["batch_size"]),
                "rule": row["rule"],
                **{name: float(row[name]) for name in COLUMNS[3:]},
            }
            for row in csv.DictReader(file)
        ]


def _cell_of(row: dict[str, Any]) -> Cell:
    return Cell(row["network"], row["batch_size"], row["rule"])


def _to_csv(rows: Iterable[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        texts = {name: f"{row[name]:.6g}" for name in COLUMNS[3:]}
        writer.writerow({**row, **texts})
    return file.getvalue()


def _write(path: pathlib.Path, text: str) -> None:
    """Writes a file beside `path` first, so that an interruption leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial.{path.name}")
    partial.write_text(text)
    os.replace(partial, path)


def _plot(rows: Sequence[dict[str, Any]], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure, panels = plt.subplots(
        1, len(networks), figsize=(3.2 * len(networks) + 1, 3.2), squeeze=False
    )
    for panel, network in zip(panels[0], networks, strict=True):
        for rule in RULES:
            points = sorted(
                (row["batch_size"], row["auc"])
                for row in rows
                if row["network"] == network and row["rule"] == rule
            )
            panel.plot(*zip(*points, strict=True), marker="o", label=rule)
        panel.set_xscale("log", base=2)
        panel.set(title=network, xlabel="batch size")
    panels[0][0].set_ylabel("test AUC")
    panels[0][0].legend()
    figure.tight_layout()
    # Without a date, so that equal results are equal files.
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
