"""`inspect`: what a checkpoint or a store holds."""

import argparse

from tfctr.commands.options import Commands, check_json, write_json


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "inspect", help="say what a checkpoint or a store holds, and if it is whole"
    )
    parser.add_argument(
        "directory",
        help="of checkpoints, or of one, or a snapshot, or the ssd of tables",
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tfctr.checkpoint import inspection

    check_json(options.json)
    result = inspection.inspect(options.directory)
    print(inspection.report(result))
    write_json(options.json, result)
    return 0 if inspection.is_whole(result) else 1
