"""`export-delta`: what changed between two exports."""

import argparse
import json
import pathlib

from tfctr.commands.options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "export-delta", help="write the rows that changed between two exports"
    )
    parser.add_argument("earlier", help="export that the servers have")
    parser.add_argument("later", help="export that they shall have")
    parser.add_argument("directory", help="of the delta; must not exist")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tfctr.export import deltas

    path = deltas.delta(options.earlier, options.later, options.directory)
    print(f"Written: {path}")
    facts = json.loads((pathlib.Path(path) / deltas.DELTA_MANIFEST).read_text())
    width = max(map(len, facts["rows"]), default=0)
    for name, rows in facts["rows"].items():
        changed, removed = rows["changed"], rows["removed"]
        print(f"  {name:<{width}}  {changed:,} rows changed, {removed:,} removed")
    return 0
