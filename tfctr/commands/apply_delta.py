"""`apply-delta`: the next version of an export."""

import argparse

from tfctr.commands.options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "apply-delta", help="make the next version of an export, for a server to find"
    )
    parser.add_argument("export", help="that the delta was made from")
    parser.add_argument("delta", help="directory that export-delta has written")
    parser.add_argument(
        "directory", help="of the next version, such as models/ads/2; must not exist"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tfctr.export import apply_delta

    path = apply_delta(options.export, options.delta, options.directory)
    print(f"Written: {path}")
    return 0
