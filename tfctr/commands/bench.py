"""`bench`: the speed of tfctr beside other systems."""

import argparse
import importlib

from tfctr.commands.options import Commands, check_json, write_json

BENCHES = (
    "step",
    "clip",
    "scale",
    "grow",
    "fit",
    "ssd",
    "snapshot",
    "policy",
    "horovod",
    "topology",
    "serve",
    "lookup",
    "read",
)
# Those that write gigabytes to a disk.
DISK_BENCHES = ("serve", "snapshot", "ssd")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure, beside the peers")
    parser.add_argument("what", choices=BENCHES)
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument(
        "--directory",
        metavar="DIR",
        help="of ssd, snapshot and serve: on the disk to write to; the current one by "
        "default",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="of policy: MovieLens 1M, to replay it too"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    bench = importlib.import_module(f"tfctr.bench.{options.what}")
    check_json(options.json)
    arguments = {}
    if options.directory is not None and options.what not in DISK_BENCHES:
        raise ValueError(
            f"--directory goes with the benchmarks {', '.join(DISK_BENCHES)}, which "
            f"write to a disk. Received: {options.what} --directory "
            f"{options.directory}. Leave it out."
        )
    if options.directory is not None:
        arguments["directory"] = options.directory
    if options.data is not None and options.what != "policy":
        raise ValueError(
            "--data goes with policy, which replays it. "
            f"Received: bench {options.what} --data {options.data}."
        )
    if options.data is not None:
        arguments["data"] = options.data
    result = bench.run(**arguments)
    print(bench.table(result))
    write_json(options.json, result)
    return 0
