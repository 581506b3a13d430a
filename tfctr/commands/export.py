"""`export`: a SavedModel of what was trained."""

import argparse

from tfctr.commands.options import Commands

# Those of tfctr.export, which imports TensorFlow.
QUANTIZATIONS = ("float16", "int8")
TABLES = ("stock", "store")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "export", help="make a SavedModel that any TensorFlow Serving loads"
    )
    parser.add_argument(
        "checkpoint",
        help="a .keras file, the directory of a run, or a checkpoint, with --config",
    )
    parser.add_argument(
        "directory", help="of the export, such as export/ads/1; must not exist"
    )
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file that the checkpoint was trained by"
    )
    parser.add_argument(
        "--examples",
        type=int,
        default=0,
        metavar="N",
        help="rows of the test split to keep, to warm up and for check-export",
    )
    parser.add_argument("--quantize", choices=QUANTIZATIONS, help="rows smaller")
    parser.add_argument(
        "--file-size", metavar="SIZE", help="split files there, such as 1GB"
    )
    parser.add_argument(
        "--max-bytes", metavar="SIZE", help="keep the most used rows only, such as 4GB"
    )
    parser.add_argument(
        "--tables",
        choices=TABLES,
        default=TABLES[0],
        help="variables, or stores for servers that link the library of our ops",
    )
    parser.add_argument(
        "--ram",
        metavar="SIZE",
        help="of rows in stores, such as 4GB; others are on SSD",
    )
    parser.add_argument(
        "--ssd", metavar="DIR", help="of the server, for these; default: its temporary"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tfctr import exporting

    path = exporting.export(
        options.checkpoint,
        options.directory,
        options.config,
        options.examples,
        quantize=options.quantize,
        file_size=options.file_size,
        max_bytes=options.max_bytes,
        tables=options.tables,
        ram=options.ram,
        ssd=options.ssd,
    )
    print(f"Written: {path}")
    return 0
