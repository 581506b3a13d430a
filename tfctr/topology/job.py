"""Starts a job whose ranks are pinned: horovodrun with a plan."""

import os
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import NoReturn

from tfctr.topology.machine import Machine
from tfctr.topology.planner import plan
from tfctr.topology.rank_plan import VARIABLE, Plan
from tfctr.topology.visible_gpus import usable_gpus


def run(
    command: Sequence[str],
    num_ranks: int,
    hosts: str | None = None,
    directories: Sequence[str] = (),
) -> NoReturn:
    """Becomes horovodrun, which starts the command on each rank, pinned.

    Args:
        command: Strings. The program and its arguments.
        num_ranks: Integer. How many ranks the job has.
        hosts: String, as `-H` of horovodrun takes it: `host1:4,host2:4`. Each is then
            planned by its own ranks. `None` means this machine.
        directories: Strings. On SSDs of this machine, for `TieredStorage`.

    Raises:
        ValueError: If an argument is wrong, a directory is not there, or Horovod is
            not installed.
    """
    machine = Machine.read()
    slots = _slots(hosts, num_ranks)
    if directories and hosts is not None:
        raise ValueError(
            "--ssd names directories of this machine, and -H plans on each host. "
            f"Received: -H {hosts} --ssd {directories[0]}. Leave one out."
        )
    for directory in directories:
        if not os.path.isdir(directory):
            raise ValueError(
                "--ssd must name a directory on an SSD of this machine. Received: "
                f"--ssd {directory}, which is none. Make it, or name another."
            )
    ssd = {directory: nvme_below(directory, machine) for directory in directories}
    chosen = plan(
        machine,
        slots[0],
        ssd=ssd,
        num_hosts=len(slots),
        use_gpus=usable_gpus(machine),
        share_cpus=True,
    )
    program = _horovodrun()
    options = ["-np", str(num_ranks), *(("-H", hosts) if hosts else ())]
    launch = [sys.executable, "-m", "tfctr.topology.launch"]
    env = _environment(chosen, hosts is None)
    os.execve(program, [program, *options, *launch, *command], env)


def nvme_below(directory: str, machine: Machine) -> str | None:
    """The NVMe device that a directory of this machine is on, if it is on one."""
    device = os.stat(directory).st_dev
    path = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    # A partition lies in the directory of its disk.
    parts = path.resolve().parts
    return next((x.name for x in machine.nvme if x.name in parts), None)


def _environment(chosen: Plan, is_here: bool) -> dict[str, str]:
    # All ranks of a job must sum alike, also on machines that would choose otherwise.
    settings = dict(setting.split("=", 1) for setting in chosen.environment)
    found = {**settings, **os.environ}
    found.pop(VARIABLE, None)
    if is_here:
        found[VARIABLE] = chosen.to_json(indent=None)
    return found


def _slots(hosts: str | None, num_ranks: int) -> list[int]:
    """How many ranks run on each host; horovodrun fills one after the other."""
    if num_ranks < 1:
        raise ValueError(
            f"-np must be a positive number of ranks. Received: -np {num_ranks}."
        )
    if hosts is None:
        return [num_ranks]
    slots, left = [], num_ranks
    for host in hosts.split(","):
        name, _, number = host.rpartition(":")
        if not name or not number.isdecimal() or int(number) < 1:
            raise ValueError(
                "-H must list hosts with their numbers of ranks, as host1:4,host2:4. "
                f"Received: -H {hosts}."
            )
        if left > 0:
            slots.append(min(left, int(number)))
        left -= int(number)
    if left > 0:
        raise ValueError(
            f"-H must have places for all {num_ranks} ranks. Received: -H {hosts}, "
            f"{left} too few."
        )
    return slots


def _horovodrun() -> str:
    beside = pathlib.Path(sys.executable).with_name("horovodrun")
    found = str(beside) if beside.exists() else shutil.which("horovodrun")
    if found is None:
        raise ValueError(
            "`python -m tfctr run` starts jobs by horovodrun. Received: a Python "
            "without Horovod. In the repository of tfctr, `make setup` builds it; run "
            "the command by the Python of .venv."
        )
    return found
