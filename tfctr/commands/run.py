"""`run`: a job whose ranks are pinned."""

import argparse

from tfctr.commands.options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "run", help="start a program by horovodrun, each rank pinned by the plan"
    )
    parser.add_argument(
        "-np", type=int, required=True, metavar="N", help="ranks to start"
    )
    parser.add_argument(
        "-H", dest="hosts", metavar="HOST:N,...", help="where; this machine by default"
    )
    parser.add_argument(
        "--ssd",
        action="append",
        default=[],
        metavar="DIR",
        help="directory for tables on an SSD of this machine; may be repeated",
    )
    parser.add_argument(
        "command", nargs="+", metavar="PROGRAM", help="after --, with its arguments"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tfctr.topology import job

    job.run(options.command, options.np, options.hosts, options.ssd)
