"""`check-export`: an export beside its model."""

import argparse

from tfctr.commands.options import Commands, check_json, write_json


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "check-export", help="compare an export with its model, by TensorFlow alone"
    )
    parser.add_argument("directory", help="of the export")
    parser.add_argument(
        "--data",
        metavar="FILE",
        help=".npz file of inputs/NAME and outputs/NAME; the examples that the export "
        "has kept by default",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        help="ask a running TensorFlow Serving by REST, such as http://localhost:8501",
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tfctr.export import checking

    check_json(options.json)
    result = checking.check(options.directory, options.data, server=options.server)
    print(checking.report(result))
    write_json(options.json, result)
    return 0 if result["is_equal"] else 1
