"""`topology`: the machine and the plan for it."""

import argparse
import json

from tfctr.commands.options import Commands, write


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "topology", help="show processors, memory and devices of a machine"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--sysfs",
        metavar="DIR",
        help="of the machine whose sys/ and proc/ lie there, instead of this one",
    )
    source.add_argument(
        "--hwloc-xml", metavar="FILE", help="of the machine that lstopo has written"
    )
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="to plan for; by default one for each GPU, or else for each NUMA node",
    )
    parser.add_argument(
        "--share-cpus",
        action="store_true",
        help="plan for more ranks than hardware threads, which then share them",
    )
    parser.add_argument(
        "--explain", action="store_true", help="say why the plan is as it is"
    )
    parser.add_argument(
        "--svg", metavar="FILE", help="draw the machine with its ranks and links there"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of text"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tfctr.topology import Machine, draw, explain, plan, render, visible_gpus

    if options.json and options.explain:
        raise ValueError(
            "--json stands alone on the output. Received: --json --explain. Leave one "
            "out."
        )
    use_gpus: bool | tuple[int, ...] = True
    if options.sysfs is not None:
        machine = Machine.from_sysfs(options.sysfs)
    elif options.hwloc_xml is not None:
        machine = Machine.from_hwloc_xml(options.hwloc_xml)
    else:
        machine = Machine.read()
        use_gpus = visible_gpus.usable_gpus(machine)
    chosen = plan(
        machine, options.ranks, use_gpus=use_gpus, share_cpus=options.share_cpus
    )
    if options.svg is not None:
        write("--svg", options.svg, draw(machine, chosen))
    if options.json:
        plain = {"machine": machine.to_dict(), "plan": chosen.to_dict()}
        print(json.dumps(plain, indent=2))
    else:
        print(render(machine, chosen))
    if options.explain:
        print(explain(machine, chosen))
    return 0
