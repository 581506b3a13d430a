"""`study`: one model trained in many ways."""

import argparse

from tfctr import study
from tfctr.commands.options import Commands, add_config, integers, words
from tfctr.config import TrainConfig


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("study", help="train one model in many ways")
    parser.add_argument("what", choices=("large-batch",))
    add_config(parser)
    parser.add_argument(
        "--batch-sizes",
        required=True,
        type=integers,
        metavar="N,N,...",
        help="multiples of run.batch_size",
    )
    parser.add_argument(
        "--rules",
        default=list(study.RULES),
        type=words,
        metavar="RULE,RULE,...",
        help="by which learning rates grow; by default " + ",".join(study.RULES),
    )
    parser.add_argument(
        "--networks",
        default=[],
        type=words,
        metavar="NAME,NAME,...",
        help="names of models; that of the config by default",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="the CSV file; benchmarks/large_batch_DATASET.csv by default",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    rows = study.large_batch(
        TrainConfig.load(options.config, options.overrides),
        options.batch_sizes,
        options.rules,
        options.networks,
        options.output,
    )
    print(study.table(rows))
    return 0
