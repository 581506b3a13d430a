"""A machine as text, for people."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tfctr.topology.cpu_mask import to_list
from tfctr.topology.machine import Gpu, Machine, Nic, NumaNode, Nvme, Package
from tfctr.topology.rank_plan import Plan, RankPlan

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_INDENT = "  "


@dataclass
class _Branch:
    """A line, and those below it."""

    text: str
    below: list["_Branch"] = field(default_factory=list)

    def lines(self, depth: int = 0) -> Iterator[str]:
        yield _INDENT * depth + self.text
        for branch in self.below:
            yield from branch.lines(depth + 1)


def render(machine: Machine, plan: Plan | None = None) -> str:
    """Draws a machine as a tree of lines.

    Packages and NUMA nodes stand the one inside the other, devices in the node that
    they are nearest to, ranks in the node where they are at home, and below them how
    far the nodes are from each other.

    Args:
        machine: The machine.
        plan: A plan for it. `None` draws the machine alone.

    Example:

    >>> node = NumaNode(id=0, cpus=(0, 1, 4), memory_bytes=2**30)
    >>> print(render(Machine((0, 1, 4), (), (node,), nvme=(Nvme("nvme0n1"),))))
    Machine: 0 packages, 1 NUMA node, 0 cores, 3 hardware threads, 1 GiB
      NUMA node 0: 1 GiB, CPUs 0-1,4, 0 cores
      NVMe nvme0n1: on no PCI bus
    """
    root = _Branch(_summary(machine))
    packages = [_Branch(_package(package)) for package in machine.packages]
    nodes = {node.id: _Branch(_numa_node(machine, node)) for node in machine.numa_nodes}
    # A node with the CPUs of a package is in it; one with those of several is around.
    for package, branch in zip(machine.packages, packages, strict=True):
        homes = [node for node in machine.numa_nodes if not node.memory_only]
        around = (x.id for x in homes if set(package.cpus) < set(x.cpus))
        id_ = next(around, None) if package.cpus else None
        (root if id_ is None else nodes[id_]).below.append(branch)
    for node in machine.numa_nodes:
        place = _package_around(machine, node.cpus)
        (root if place is None else packages[place]).below.append(nodes[node.id])
    devices: list[Gpu | Nic | Nvme] = [*machine.gpus, *machine.nics, *machine.nvme]
    for device in devices:
        place = _package_around(machine, device.cpus)
        parent = root if place is None else packages[place]
        if device.numa_node is not None:
            parent = nodes[device.numa_node]
        parent.below.append(_Branch(_device(machine, device)))
    for rank in plan.ranks if plan else ():
        nodes[rank.numa_node].below.append(_Branch(_rank(rank)))
    return "\n".join([*root.lines(), *_distances(machine)])


def _package_around(machine: Machine, cpus: tuple[int, ...]) -> int | None:
    """The place of the package that holds all of some CPUs."""
    if cpus:
        for place, package in enumerate(machine.packages):
            if set(cpus) <= set(package.cpus):
                return place
    return None


def _summary(machine: Machine) -> str:
    parts = [
        _count(len(machine.packages), "package"),
        _count(len(machine.numa_nodes), "NUMA node"),
        _count(len(machine.cores), "core"),
        _count(len(machine.cpus), "hardware thread"),
        _bytes(machine.memory_bytes),
    ]
    if machine.memory_limit_bytes is not None:
        parts[-1] += " by limit of the cgroup"
    if machine.cpu_quota is not None:
        parts.append(f"time of {machine.cpu_quota:g} CPUs by quota of the cgroup")
    return f"Machine: {', '.join(parts)}"


def _package(package: Package) -> str:
    name = "Package" if package.id is None else f"Package {package.id}"
    return f"{name}: {_cpus(package.cpus)}" + (package.model and f", {package.model}")


def _numa_node(machine: Machine, node: NumaNode) -> str:
    near = " near" if node.memory_only and node.cpus else ""
    parts = [_bytes(node.memory_bytes), _cpus(node.cpus) + near]
    if not node.memory_only:
        cores = [core for core in machine.cores if core.numa_node == node.id]
        parts.append(_count(len(cores), "core"))
        parts += _last_caches(machine, set(node.cpus))
    return f"NUMA node {node.id}: {', '.join(parts)}"


def _last_caches(machine: Machine, cpus: set[int]) -> list[str]:
    """The caches of the highest level in a node, those of one size together."""
    inside = [cache for cache in machine.caches if cpus & set(cache.cpus)]
    level = max((cache.level for cache in inside), default=0)
    sizes = [
        cache.size_bytes
        for cache in inside
        if cache.level == level and cache.kind != "instruction"
    ]
    return [
        f"L{level} {sizes.count(size)} x {_bytes(size)}" for size in sorted(set(sizes))
    ]


def _device(machine: Machine, device: Gpu | Nic | Nvme) -> str:
    if isinstance(device, Gpu):
        name = f"GPU {device.id}"
        details = [device.name, _bytes(device.memory_bytes)]
        if not device.memory_bytes:
            details.pop()
        details += _nvlinks(machine, device)
    elif isinstance(device, Nic):
        name = f"NIC {device.name}"
        details = [f"RDMA {rdma}" for rdma in device.rdma]
    else:
        name, details = f"NVMe {device.name}", []
    parts = [device.pci_address or "on no PCI bus", *filter(None, details)]
    return f"{name}: {', '.join(parts)}"


def _rank(rank: RankPlan) -> str:
    parts = [_cpus(rank.cpus)]
    if len(rank.numa_nodes) > 1:
        parts[0] += f" of nodes {to_list(tuple(sorted(rank.numa_nodes)))}"
    parts += [] if rank.gpu is None else [f"GPU {rank.gpu}"]
    parts += [f"NIC {rank.nic}"] if rank.nic else []
    parts += [f"NVMe {rank.nvme}"] if rank.nvme else []
    parts += [f"tables in {rank.ssd}"] if rank.ssd else []
    threads = f"{rank.intra_op_threads} + {rank.inter_op_threads} threads"
    memory_nodes = ", ".join(map(str, rank.memory_nodes))
    parts += [threads, f"memory: {rank.memory_policy} {memory_nodes}"]
    return f"Rank {rank.local_rank}: {', '.join(parts)}, {' '.join(rank.devices)}"


def _nvlinks(machine: Machine, gpu: Gpu) -> list[str]:
    """The peers of a GPU, all switches in one."""
    ids = {other.pci_address: other.id for other in machine.gpus}
    speeds: dict[str, int] = {}
    switches = [peer for peer in gpu.nvlink_peers if peer.kind == "switch"]
    for peer in gpu.nvlink_peers:
        if peer.kind == "switch":
            name = f"{len(switches)} switch{'es' * (len(switches) > 1)}"
        elif peer.kind == "gpu":
            name = f"GPU {ids.get(peer.id, peer.id)}"
        else:
            name = f"package {peer.id}"
        speeds[name] = speeds.get(name, 0) + peer.bytes_per_second
    return [
        f"NVLink to {name} {speed / 10**9:g} GB/s" for name, speed in speeds.items()
    ]


def _distances(machine: Machine) -> list[str]:
    nodes = machine.numa_nodes
    if len(nodes) < 2 or not nodes[0].distances:
        return []
    width = 2 + max(len(str(x)) for node in nodes for x in (node.id, *node.distances))
    rows = [("", [node.id for node in nodes])]
    rows += [(str(node.id), list(node.distances)) for node in nodes]
    return [
        "Distances between NUMA nodes:",
        *(
            head.rjust(width) + "".join(str(value).rjust(width) for value in values)
            for head, values in rows
        ),
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _cpus(cpus: tuple[int, ...]) -> str:
    return f"CPUs {to_list(cpus)}" if cpus else "no CPUs"


def _bytes(number: int) -> str:
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}" if number else "unknown memory"
