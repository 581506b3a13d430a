"""`top`: a training as it runs, in the terminal."""

import argparse

from tfctr.commands.options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "top", help="show a training as it runs: speed, tables and tiers"
    )
    parser.add_argument(
        "directory",
        metavar="RUN_DIR",
        help="run.directory of a training with run.report, or that of a TrainingReport",
    )
    parser.add_argument(
        "--once", action="store_true", help="print what is known by now, and end"
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="between two looks at the files; 1 by default",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tfctr.report import view

    view.check_rich()
    if options.once:
        view.show(options.directory)
    else:
        view.follow(options.directory, options.interval)
    return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(
            f"expected a positive number of seconds, such as 0.5, not {text}"
        )
    return seconds
