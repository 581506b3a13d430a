"""`data`: turns click logs into other files, and makes them up."""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tfctr.commands.options import Commands

# Those of tfctr.data.conversion and tfctr.data.synthesis, which import NumPy.
SOURCES = ("criteo", "avazu", "parquet", "tfrecord", "movielens")
TARGETS = ("parquet", "tfrecord")
SHAPES = ("criteo", "avazu")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("data", help="convert click logs, or make them up")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    convert = actions.add_parser("convert", help="write a log as other files")
    convert.add_argument("source", help="a file, or a directory of files")
    convert.add_argument("target", help="a directory, new or empty")
    convert.add_argument("--from", choices=SOURCES, required=True, dest="source_format")
    convert.add_argument("--to", choices=TARGETS, required=True, dest="target_format")
    convert.add_argument(
        "--on-bad-line",
        choices=("raise", "skip"),
        default="raise",
        help="skip is not for parquet, whose rows are written as they are",
    )
    convert.set_defaults(run=_convert)
    synthesize = actions.add_parser(
        "synthesize", help="draw a log whose best AUC is known"
    )
    synthesize.add_argument("target", help="a directory, new or empty")
    synthesize.add_argument("--like", choices=SHAPES, default="criteo")
    synthesize.add_argument(
        "--to",
        choices=("tsv", *TARGETS),
        default="tsv",
        help="tsv means the lines of the public log: Avazu's have commas",
    )
    synthesize.add_argument("--examples", type=int, default=1_000_000)
    synthesize.add_argument(
        "--max-ids", type=int, default=10_000_000, help="of a category at a time"
    )
    synthesize.add_argument(
        "--drift", type=float, default=1.0, help="how often each id is replaced"
    )
    synthesize.add_argument("--seed", type=int, default=0)
    synthesize.set_defaults(run=_synthesize)


def _convert(options: argparse.Namespace) -> int:
    from tfctr.data import conversion

    num_bytes = conversion.source_bytes(options.source, options.source_format)
    with _bar(num_bytes, "bytes") as progress:
        done = conversion.convert(
            options.source,
            options.target,
            options.source_format,
            options.target_format,
            options.on_bad_line,
            progress,
        )
    print(
        f"{done['examples']:,} examples in {done['files']} files; "
        f"{done['bad_lines']:,} bad lines left out."
    )
    return 0


def _synthesize(options: argparse.Namespace) -> int:
    from tfctr.data import SyntheticStream, conversion
    from tfctr.metrics import auc, log_loss

    stream = SyntheticStream(
        options.examples, options.like, options.max_ids, options.drift, options.seed
    )
    with _bar(options.examples, "examples") as progress:
        labels, probabilities = conversion.synthesize(
            stream, options.target, options.to, progress
        )
    facts: dict[str, Any] = {
        "like": options.like,
        "examples": options.examples,
        "max_ids": options.max_ids,
        "drift": options.drift,
        "seed": options.seed,
    }
    if 0 < labels.sum() < len(labels):
        facts["best_auc"] = auc(labels, probabilities)
        facts["best_log_loss"] = log_loss(labels, probabilities)
        print(f"Best reachable AUC of the last tenth: {facts['best_auc']:.4f}")
    conversion.write_facts(options.target, facts)
    return 0


@contextlib.contextmanager
def _bar(total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Shows a bar, and gives what moves it; the next message has its own line."""
    import keras

    bar = keras.utils.Progbar(max(total, 1), unit_name=unit, interval=0.5)
    try:
        yield bar.add
    finally:
        print(flush=True)
