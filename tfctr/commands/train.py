"""`train`: trains a model from a TOML file."""

import argparse
import contextlib
import pathlib
from typing import Any

from tfctr.commands.options import (
    Commands,
    add_config,
    check_file,
    check_json,
    write,
    write_json,
)
from tfctr.config import MODES, TrainConfig


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("train", help="train a model from a TOML file")
    add_config(parser)
    parser.add_argument("--mode", choices=MODES, help="overrides run.mode")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="CSV file of the windows of the mode 'progressive', with a plot beside "
        "it; windows.csv in run.directory by default",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Imported here, so that `--help` does not wait for TensorFlow.
    from tfctr import distributed, progressive, training

    mode = [f"run.mode={options.mode}"] if options.mode else []
    config = TrainConfig.load(options.config, [*options.overrides, *mode])
    check_json(options.json)
    is_progressive = config.run.mode == "progressive"
    _check_output(options.output, is_progressive)
    how = progressive if is_progressive else training
    model, result = how.train(config)
    is_main = distributed.is_main()
    try:
        # None of them is lost where the others cannot be written. First comes the
        # report, then what was put in last.
        with contextlib.ExitStack() as left:
            if is_main and is_progressive:
                default = pathlib.Path(config.run.directory) / "windows.csv"
                left.callback(_write_windows, options.output or default, result)
            if is_main:
                left.callback(write_json, options.json, result)
                print(how.report(result), flush=True)
    finally:
        path = training.save(model, config)
    if is_main:
        print(f"  {'model':<14}{path}")
    return 0


def _check_output(path: str | None, is_progressive: bool) -> None:
    if path is None:
        return
    if not is_progressive:
        raise ValueError(
            "--output takes the windows of the mode 'progressive'. Received: "
            f"--output {path} without it. Add --mode progressive, or leave it out."
        )
    if pathlib.Path(path).suffix != ".csv":
        raise ValueError(
            "--output must end in .csv: the plot beside it has the same name with "
            f".svg. Received: --output {path}."
        )
    check_file("--output", path)


def _write_windows(path: str | pathlib.Path, result: dict[str, Any]) -> None:
    from tfctr import progressive

    windows = result["windows"]
    plot = pathlib.Path(path).with_suffix(".svg")
    write("--output", str(path), progressive.to_csv(windows))
    try:
        progressive.plot(windows, plot)
    except OSError as error:
        raise OSError(
            "The plot of the windows must be written beside their table. Received: "
            f"'{plot}' ({error.strerror}). Name another table: --output FILE.csv."
        ) from error
    except ImportError as error:
        print(f"  no plot: {error}. Install it: pip install matplotlib.")
