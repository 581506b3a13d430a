"""How fast the devices of a machine reach each other, and by which ways."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from tfctr.topology.machine import Gpu, Machine, Nic, NumaNode, Nvme

# Bytes a second in one direction, where a machine does not tell them: PCI Express 3.0
# with 16 lanes, memory, and the link between two sockets at a distance of 20. Ways are
# chosen by comparing sums of their inverses, so that the order matters, not the digit.
PCIE_SPEED = 16 * 10**9
MEMORY_SPEED = 100 * 10**9
SOCKET_SPEED = 20 * 10**9
_FAR = 20
# So that costs are integers: equal ways compare as equal.
_COST_UNIT = 10**18
# All NVSwitches of a machine: they are built to be one.
SWITCH = "nvswitch"


@dataclass(frozen=True)
class Link:
    """Two places that data passes between without a third.

    Attributes:
        ends: Strings. Places: `gpu:0`, `nic:eth0`, `nvme:nvme0n1`, `node:0` (the memory
            of a NUMA node), `nvswitch`, or `pci:` and an address.
        kind: String. `"nvlink"`, `"pcie"` or `"memory"`.
        bytes_per_second: Integer. In one direction; nominal except for NVLink.

    Example:

    >>> Link(("gpu:0", "gpu:1"), "nvlink", 25 * 10**9).cost
    40000000
    """

    ends: tuple[str, str]
    kind: str
    bytes_per_second: int

    @property
    def cost(self) -> int:
        """1 / bandwidth, in units in which it is an integer."""
        return _COST_UNIT // self.bytes_per_second


@dataclass(frozen=True)
class Route:
    """The best way from one GPU to another.

    Attributes:
        source: Integer. The id of the GPU that sends.
        target: Integer. The id of the GPU that receives.
        relays: Integers. The GPUs between them, in order; each receives all before it
            sends on. Empty for the direct way.
        through_host: Boolean. Whether the data passes the memory of a NUMA node.
        bytes_per_second: Integer. That of the narrowest link.

    Example:

    >>> Route(0, 5, relays=(4,), through_host=False, bytes_per_second=10**9).relays
    (4,)
    """

    source: int
    target: int
    relays: tuple[int, ...]
    through_host: bool
    bytes_per_second: int


def links(machine: Machine) -> tuple[Link, ...]:
    """The graph of a machine: every link between its devices and memories.

    Args:
        machine: The machine.

    Example:

    >>> node = NumaNode(id=0, cpus=(0,), memory_bytes=2**30)
    >>> machine = Machine((0,), (), (node,), nvme=(Nvme("nvme0n1", numa_node=0),))
    >>> [link.ends for link in links(machine)]
    [('nvme:nvme0n1', 'node:0')]
    """
    found: dict[tuple[str, str], Link] = {}
    for link in (*_between_nodes(machine), *_on_pci(machine), *_nvlinks(machine)):
        # Both ends may tell of one link.
        found.setdefault((min(link.ends), max(link.ends)), link)
    return tuple(found.values())


def routes(machine: Machine) -> tuple[Route, ...]:
    """The best way between every two GPUs: the shortest, at a cost of 1 / bandwidth.

    A copy over several links takes the sum of the times that each takes, so the cost of
    a way is the sum of 1 / bandwidth. Only GPUs relay. Of equal ways the one with fewer
    links is taken, then the one that crosses to the node of the target first.

    Args:
        machine: The machine.

    Example:

    Two GPUs on two sockets, and a third that has NVLinks to both:

    >>> def gpu(id, node, *peers):
    ...     links = tuple(NvlinkPeer("gpu", f"0000:0{i}:00.0", 10**11) for i in peers)
    ...     return Gpu(id, f"0000:0{id}:00.0", numa_node=node, nvlink_peers=links)
    >>> nodes = NumaNode(0, (0,), 2**30, (10, 20)), NumaNode(1, (1,), 2**30, (20, 10))
    >>> gpus = gpu(0, 0, 2), gpu(1, 1, 2), gpu(2, 1, 0, 1)
    >>> machine = Machine((0, 1), (), nodes, gpus=gpus)
    >>> [(x.source, x.target, x.relays) for x in routes(machine) if x.relays]
    [(0, 1, (2,)), (1, 0, (2,))]
    """
    graph = Graph(machine)
    return tuple(
        graph.route(source, target)
        for source in machine.gpus
        for target in machine.gpus
        if source != target
    )


class Graph:
    """The links of a machine by their ends, and shortest ways in it."""

    def __init__(self, machine: Machine) -> None:
        self._links: dict[str, dict[str, Link]] = {}
        for link in links(machine):
            for here, there in (link.ends, link.ends[::-1]):
                self._links.setdefault(here, {})[there] = link
        self._nodes = {f"gpu:{gpu.id}": gpu.numa_node for gpu in machine.gpus}

    def cost(self, source: str, target: str) -> int | None:
        """The sum of 1 / bandwidth on the best way; `None` where there is none."""
        found = self._search(source, target)
        return found and found[0]

    def route(self, source: Gpu, target: Gpu) -> Route:
        """The best way between two GPUs."""
        found = self._search(f"gpu:{source.id}", f"gpu:{target.id}")
        # All memories are linked, and each GPU to one of them at least.
        path = found[1] if found else (f"gpu:{source.id}", f"gpu:{target.id}")
        speeds = [
            self._links[here][there].bytes_per_second
            for here, there in zip(path, path[1:], strict=False)
            if found
        ]
        return Route(
            source.id,
            target.id,
            relays=tuple(
                int(place[4:]) for place in path[1:-1] if place in self._nodes
            ),
            through_host=any(place.startswith("node:") for place in path),
            bytes_per_second=min(speeds, default=0),
        )

    def _search(self, source: str, target: str) -> tuple[int, tuple[str, ...]] | None:
        """Dijkstra's. Ties: fewer links, fewer relays off the target's node, names."""
        home = self._nodes.get(target)
        queue: list[tuple[int, int, int, tuple[str, ...]]] = [(0, 0, 0, (source,))]
        done: set[str] = set()
        while queue:
            cost, length, off, path = heapq.heappop(queue)
            place = path[-1]
            if place == target:
                return cost, path
            if place in done:
                continue
            done.add(place)
            if place in self._nodes and place != source:
                off += self._nodes[place] != home
            for there, link in self._links.get(place, {}).items():
                if there not in done and not _joins_memories(path, there):
                    step = (cost + link.cost, length + 1, off, (*path, there))
                    heapq.heappush(queue, step)
        return None


def _joins_memories(path: tuple[str, ...], there: str) -> bool:
    """Whether a way goes from memory to memory through a device.

    One that is next to no single node is linked to several, and is no bridge for them.
    """
    steps = [place.startswith("node:") for place in (*path[-2:], there)]
    return steps == [True, False, True]


def distance(machine: Machine, one: NumaNode, other: NumaNode) -> int:
    """How far memory is: 10 is local. 20 where the machine does not tell."""
    if one.distances:
        ids = [node.id for node in machine.numa_nodes]
        return one.distances[ids.index(other.id)]
    return 10 if one.id == other.id else _FAR


def _between_nodes(machine: Machine) -> Iterator[Link]:
    for index, one in enumerate(machine.numa_nodes):
        for other in machine.numa_nodes[index + 1 :]:
            away = max(10, distance(machine, one, other))
            ends = (f"node:{one.id}", f"node:{other.id}")
            yield Link(ends, "memory", SOCKET_SPEED * _FAR // away)


def _on_pci(machine: Machine) -> Iterator[Link]:
    devices: list[Gpu | Nic | Nvme] = [*machine.gpus, *machine.nics, *machine.nvme]
    for device in devices:
        # From the device up to the root of its bus.
        path = [f"pci:{address}" for address in device.pci_path[-2::-1]]
        places = [place_of(device), *path]
        for here, there in zip(places, places[1:], strict=False):
            yield Link((here, there), "pcie", PCIE_SPEED)
        kind, speed = ("memory", MEMORY_SPEED) if path else ("pcie", PCIE_SPEED)
        for node in _near(machine, device):
            yield Link((places[-1], f"node:{node.id}"), kind, speed)


def _nvlinks(machine: Machine) -> Iterator[Link]:
    ids = {gpu.pci_address: gpu.id for gpu in machine.gpus}
    for gpu in machine.gpus:
        here = place_of(gpu)
        speeds = {
            kind: sum(x.bytes_per_second for x in gpu.nvlink_peers if x.kind == kind)
            for kind in ("switch", "package")
        }
        if speeds["switch"]:
            yield Link((here, SWITCH), "nvlink", speeds["switch"])
        if speeds["package"] and gpu.numa_node is not None:
            ends = (here, f"node:{gpu.numa_node}")
            yield Link(ends, "nvlink", speeds["package"])
        for peer in gpu.nvlink_peers:
            if peer.kind == "gpu" and peer.id in ids and peer.bytes_per_second:
                ends = (here, f"gpu:{ids[peer.id]}")
                yield Link(ends, "nvlink", peer.bytes_per_second)


def place_of(device: Gpu | Nic | Nvme) -> str:
    """The name of a device in the graph."""
    if isinstance(device, Gpu):
        return f"gpu:{device.id}"
    return f"{'nic' if isinstance(device, Nic) else 'nvme'}:{device.name}"


def _near(machine: Machine, device: Gpu | Nic | Nvme) -> list[NumaNode]:
    """The memory next to a device; all, where nothing is known."""
    nodes = machine.numa_nodes
    near = [node for node in nodes if node.id == device.numa_node]
    cpus = set(device.cpus)
    near = near or [x for x in nodes if not x.memory_only and cpus & set(x.cpus)]
    return near or list(nodes)
