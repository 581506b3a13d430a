"""The large-batch study: how well networks train as batches grow, rule by rule."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tfctr.config import TrainConfig
from tfctr.study import training_run
from tfctr.study.grid import RULES, Cell, scale_config
from tfctr.study.report import check_matplotlib, plot, table
from tfctr.study.results import cell_of, open_results, to_csv, write_text


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
    Runs that come to the same, as the former three at that batch size, are one.

    Args:
        config: `TrainConfig`. Its `tables.clip_ratio` must not be 0.
        batch_sizes: Integers, multiples of `run.batch_size`.
        rules: Strings. Of `RULES`.
        networks: Strings. `model.name`s; none means that of the config.
        output: Path of the CSV file, which ends in `.csv`. `None` means
            `benchmarks/large_batch_DATASET.csv`.
        tell: Function that gets a line about each run.

    Returns:
        The rows of the file, dicts with the keys `COLUMNS`. The `auc` and `log_loss`
        of a training whose gradients left all bounds are NaN.

    Raises:
        ValueError: If an argument is none of these, the file is of another config or
            not as it was written, or matplotlib is missing.
        OSError: If a file cannot be written, or the process of a run was killed.
    """
    networks = list(networks) or [config.model.name]
    path = pathlib.Path(output or f"benchmarks/large_batch_{config.data.kind}.csv")
    if path.suffix != ".csv":
        raise ValueError(
            "--output must end in .csv: what stands beside it has the same name with "
            f"other endings. Received: --output {path}."
        )
    cells = [
        Cell(network, size, rule)
        for network in networks
        for size in batch_sizes
        for rule in rules
    ]
    check_matplotlib()
    # All of them at once: a mistake in the last is found before the first is trained.
    configs = {cell: scale_config(config, cell) for cell in cells}
    rows = open_results(path, config)
    for number, cell in enumerate(cells, start=1):
        what = f"[{number}/{len(cells)}] {cell.network}, {cell.batch_size}, {cell.rule}"
        equal = [
            row for row in rows if scale_config(config, cell_of(row)) == configs[cell]
        ]
        if cell in map(cell_of, equal):
            tell(f"{what}: done before")
            continue
        # At the batch size of the config itself, rules that do not clip are one.
        run = equal[0] if equal else training_run.train_apart(configs[cell])
        row = {**run, **dataclasses.asdict(cell)}
        rows.append(row)
        write_text(path, to_csv(rows))
        tell(
            f"{what}: AUC {row['auc']:.4f}, log loss {row['log_loss']:.4f}, "
            f"{row['minutes']:.1f} minutes, {row['clipped_share']:.2%} of rows clipped"
        )
    write_text(path.with_suffix(".md"), table(rows))
    plot(rows, path.with_suffix(".svg"))
    return rows
