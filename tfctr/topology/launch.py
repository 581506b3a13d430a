"""Pins a rank and becomes its program: `python -m tfctr.topology.launch PROGRAM ...`.

`python -m tfctr run` puts this before the program of each rank.
"""

import os
import sys
from collections.abc import Sequence

from tfctr.topology import pinning
from tfctr.topology.machine import Machine
from tfctr.topology.planner import plan
from tfctr.topology.rank_plan import VARIABLE, Plan
from tfctr.topology.visible_gpus import usable_gpus


def main(command: Sequence[str]) -> None:
    """Pins this process, and turns it into the command, which inherits all of it.

    Args:
        command: Strings. The program and its arguments.

    Raises:
        OSError: If the program cannot be started.
        ValueError: If the plan does not fit this machine.
    """
    if not command:
        raise ValueError(
            "The launcher expects a program. Received: none. Write "
            "`python -m tfctr run -np 2 -- python train.py`."
        )
    if VARIABLE in os.environ or "HOROVOD_LOCAL_SIZE" not in os.environ:
        chosen = Plan.from_environment()
    else:
        # One of several machines, which may differ. Its ranks all plan alike.
        machine = Machine.read()
        chosen = plan(
            machine,
            int(os.environ["HOROVOD_LOCAL_SIZE"]),
            num_hosts=int(os.environ["HOROVOD_CROSS_SIZE"]),
            use_gpus=usable_gpus(machine),
            share_cpus=True,
        )
        os.environ[VARIABLE] = chosen.to_json(indent=None)
    rank = pinning.rank_of(chosen)
    os.environ.update(pinning.environment(chosen, rank))
    placement = pinning.pin(rank)
    notes = [f"rank {rank.local_rank}: {note}" for note in placement.notes]
    cpus = [cpu for each in chosen.ranks for cpu in each.cpus]
    # Once on each machine: they may differ.
    if rank.local_rank == 0 and len(cpus) > len(set(cpus)):
        notes.append(
            f"{len(chosen.ranks)} ranks share {len(set(cpus))} hardware threads: each "
            "waits for the others, and pinning gains nothing"
        )
    for note in notes:
        print(f"tfctr: {note}.", file=sys.stderr, flush=True)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        raise OSError(
            "A rank must start a program, as a shell finds it. Received: "
            f"{command[0]} ({error.strerror}). For a script, write `python` before it."
        ) from error


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ValueError) as error:
        print(f"tfctr: {error}", file=sys.stderr)
        sys.exit(2)
