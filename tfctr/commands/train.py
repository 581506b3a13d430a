"""`train`: trains a model from a TOML file."""

import argparse

from tfctr.commands.options import Commands, add_config, check_json, write_json


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("train", help="train a model from a TOML file")
    add_config(parser)
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Imported here, so that `--help` does not wait for TensorFlow.
    from tfctr import distributed, training
    from tfctr.config import TrainConfig

    config = TrainConfig.load(options.config, options.overrides)
    check_json(options.json)
    model, result = training.train(config)
    is_main = distributed.is_main()
    if is_main:
        print(training.report(result), flush=True)
    # Neither of them is lost where the other cannot be written.
    try:
        write_json(options.json if is_main else None, result)
    finally:
        path = training.save(model, config)
    if is_main:
        print(f"  {'model':<14}{path}")
    return 0
