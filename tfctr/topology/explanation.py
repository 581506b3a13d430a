"""A plan in words: what was weighed, and why each rank is where it is."""

import textwrap
from collections.abc import Iterator

from tfctr.topology.cpu_mask import to_list
from tfctr.topology.machine import Machine
from tfctr.topology.rank_plan import Plan, RankPlan
from tfctr.topology.routes import PCIE_SPEED, SOCKET_SPEED, Route, routes

_MODEL = (
    "Ranks train in step, so the plan makes the slowest one as fast as it can. It "
    "weighs, in this order: that few ranks share a GPU, and none leaves the node of "
    "its GPU; that a rank gets many cores; that the ways between GPUs are short. Of "
    "equals the lowest number is taken. Whole cores are given out, with all their "
    "hardware threads. A way costs the sum of 1 / bandwidth over its links: that of "
    f"NVLink where it is known, and nominally {PCIE_SPEED / 10**9:g} GB/s on PCI "
    f"Express and {SOCKET_SPEED / 10**9:g} GB/s between nodes at distance 20."
)
_POLICIES = {
    "bind": "bound, since every node with memory has a rank",
    "prefer": "preferred, not bound: nodes without a rank have memory for when it "
    "is full",
    "interleave": "taken in turn, since the rank works in all of them",
}


def explain(machine: Machine, plan: Plan) -> str:
    """Says what a plan weighs, and why each rank is where it is.

    Args:
        machine: The machine.
        plan: A plan for it.

    Example:

    >>> machine = Machine((0, 1), (), (NumaNode(0, (0, 1), 2**30),))
    >>> text = explain(machine, Plan((RankPlan(0, 0, (0,), (0, 1)),)))
    >>> text.splitlines()[6]
    'Rank 0: no GPU; NUMA node 0, CPUs 0-1 (2 cores).'
    """
    ways = routes(machine)
    lines = textwrap.wrap(_MODEL, 88)
    for rank in plan.ranks:
        lines.append(f"Rank {rank.local_rank}: {_where(machine, rank)}.")
        lines += [f"  {text[0].upper()}{text[1:]}." for text in _why(machine, rank)]
    lines += [f"{text}." for text in _together(machine, plan, ways)]
    return "\n".join(lines)


def _where(machine: Machine, rank: RankPlan) -> str:
    gpu = "no GPU" if rank.gpu is None else f"GPU {rank.gpu}"
    nodes = to_list(tuple(sorted(rank.numa_nodes)))
    word = "node" if len(rank.numa_nodes) == 1 else "nodes"
    cores = _num_cores(machine, rank)
    return (
        f"{gpu}; NUMA {word} {nodes}, CPUs {to_list(rank.cpus)} ({cores} "
        f"core{'s' * (cores != 1)})"
    )


def _num_cores(machine: Machine, rank: RankPlan) -> int:
    """Hardware threads of which no core is known count as one each."""
    mine = set(rank.cpus)
    cores = [core for core in machine.cores if mine & set(core.cpus)]
    known = {cpu for core in cores for cpu in core.cpus}
    return len(cores) + len(mine - known)


def _why(machine: Machine, rank: RankPlan) -> Iterator[str]:
    if rank.gpu is not None:
        yield _gpu_locality(machine, rank)
    if len(rank.numa_nodes) > 1:
        names = " ".join(rank.devices)
        yield (
            f"it works in {len(rank.numa_nodes)} nodes: {names} name them and pin "
            "nothing, since TensorFlow has one pool of threads; what pins is a rank "
            "for each node"
        )
    nodes = ", ".join(str(node) for node in rank.memory_nodes)
    word = "node" if len(rank.memory_nodes) == 1 else "nodes"
    yield f"memory of {word} {nodes}: {_POLICIES[rank.memory_policy]}"
    yield "the store asks for huge pages, which the kernel gives where it has some"
    number = rank.intra_op_threads
    threads = f"{number} thread{'s' * (number != 1)} within an op and in the store"
    if machine.cpu_quota is not None:
        threads += (
            f", by the cgroup's quota of {machine.cpu_quota:g} CPUs for all ranks"
        )
    yield f"{threads}, {rank.inter_op_threads} between ops"
    for kind, name, found in (
        ("network interface", rank.nic, machine.nics),
        ("SSD", rank.nvme, machine.nvme),
    ):
        device = next((x for x in found if x.name == name), None)
        if device is not None:
            where = "in its node"
            if device.numa_node is None:
                where = "next to no single node"
            elif device.numa_node != rank.numa_node:
                where = f"in node {device.numa_node}, the nearest of its kind"
            yield f"{kind} {name}: {where}"
    if rank.ssd is not None:
        yield f"tables on SSD go to {rank.ssd}"


def _gpu_locality(machine: Machine, rank: RankPlan) -> str:
    gpu = next(gpu for gpu in machine.gpus if gpu.id == rank.gpu)
    if gpu.numa_node is None:
        return f"GPU {gpu.id} is next to no single node, so the cores decided"
    if gpu.numa_node == rank.numa_node:
        return f"GPU {gpu.id} is in the node of these CPUs"
    return (
        f"GPU {gpu.id} is in node {gpu.numa_node}, where no CPU is left for this rank; "
        f"node {rank.numa_node} is the nearest with one"
    )


def _together(machine: Machine, plan: Plan, ways: tuple[Route, ...]) -> Iterator[str]:
    idle = set(machine.cpus).difference(*(rank.cpus for rank in plan.ranks))
    if idle:
        yield f"No rank runs on CPUs {to_list(tuple(sorted(idle)))}{_remedy(machine)}"
    yield from _uneven(machine, plan)
    gpus = {rank.gpu for rank in plan.ranks}
    if any(rank.shared_gpu for rank in plan.ranks):
        yield (
            f"{len(plan.ranks)} ranks share {len(gpus)} GPU{'s' * (len(gpus) != 1)}: "
            "NCCL refuses that, so Horovod must sum by Gloo or MPI; a rank for each "
            "GPU is faster"
        )
    elif None not in gpus and len(gpus) < len(machine.gpus):
        idle_gpus = [str(x.id) for x in machine.gpus if x.id not in gpus]
        yield f"No rank uses GPU {', '.join(idle_gpus)}"
    relayed = [x for x in ways if x.relays and {x.source, x.target} <= gpus]
    if relayed:
        texts = (
            " -> ".join(map(str, (x.source, *x.relays, x.target))) for x in relayed
        )
        yield (
            f"{len(relayed)} ways between GPUs are relayed over NVLink, since the "
            f"direct ones go through the host: {', '.join(texts)}"
        )
    yield {
        "flat": "Sums go over all ranks at once: two levels pay between several "
        "machines whose GPUs are joined by NVLink",
        "hierarchical": "Sums go in two levels, first inside each machine: its GPUs "
        "are joined by NVLink, which is faster than the network",
    }[plan.collectives]
    yield f"Settings: {' '.join(plan.environment)}"


def _remedy(machine: Machine) -> str:
    homes = sum(1 for node in machine.numa_nodes if node.cpus and not node.memory_only)
    if homes > 1:
        return f": a GPU keeps a rank in its node; {homes} ranks or more may use them"
    return ""


def _uneven(machine: Machine, plan: Plan) -> Iterator[str]:
    cores = {_num_cores(machine, rank) for rank in plan.ranks}
    if len(cores) > 1:
        yield (
            f"Ranks have {min(cores)} to {max(cores)} cores: the others wait for those "
            "with the fewest"
        )
    cpus = [cpu for rank in plan.ranks for cpu in rank.cpus]
    if len(cpus) > len(set(cpus)):
        yield "Ranks share CPUs, since there are more ranks than hardware threads"
        return
    owners = [set(rank.cpus) for rank in plan.ranks]
    split = [
        core
        for core in machine.cores
        if sum(bool(x & set(core.cpus)) for x in owners) > 1
    ]
    if split:
        yield (
            f"{len(split)} cores are split between ranks, since there are more ranks "
            "than cores: they slow each other"
        )
