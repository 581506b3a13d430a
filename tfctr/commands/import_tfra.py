"""`import-tfra`: TFRA's saved tables as a snapshot."""

import argparse

from tfctr.commands.options import Commands

# Those of tfctr.migration, which imports TensorFlow.
OPTIMIZERS = ("sgd", "adagrad", "adam", "ftrl")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "import-tfra", help="turn tables that TFRA has saved into a snapshot"
    )
    parser.add_argument(
        "source", help="a checkpoint, a SavedModel, or a directory of -keys files"
    )
    parser.add_argument("directory", help="of the snapshot; must not exist")
    parser.add_argument(
        "--table",
        action="append",
        required=True,
        metavar="NAME=TABLE/FEATURE",
        dest="tables",
        help="a table of TFRA, and the names of its TableConfig and its feature, or "
        "FEATURE/COLUMN of a per_column one; may be repeated",
    )
    parser.add_argument("--dim", type=int, required=True, help="width of the tables")
    parser.add_argument(
        "--optimizer",
        required=True,
        choices=OPTIMIZERS,
        help="whose slots come along",
    )
    parser.add_argument(
        "--step", type=int, help="steps of the optimizer, where no checkpoint says it"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tfctr.migration import import_tfra

    tables: dict[str, str] = {}
    for pair in options.tables:
        name, _, feature = pair.partition("=")
        if name in tables:
            raise ValueError(
                "--table must name each table of TFRA once. Received: --table "
                f"{name}={tables[name]} --table {pair}. Leave one out."
            )
        tables[name] = feature
    report = import_tfra(
        options.source,
        options.directory,
        tables,
        options.dim,
        options.optimizer,
        options.step,
    )
    for table in report:
        print(
            f"{table.name} -> {table.feature}: {table.rows:,} rows, "
            f"{table.rows_without_slots:,} of them without optimizer slots"
        )
    print(
        f"Written. Read it with restore_snapshot({options.directory!r}) of the layer."
    )
    return 0
