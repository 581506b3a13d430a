"""Decides where each rank goes."""

import numbers
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tfctr.topology import collectives, seats
from tfctr.topology.machine import Gpu, Machine, Nic, NumaNode, Nvme
from tfctr.topology.rank_plan import Plan, RankPlan
from tfctr.topology.routes import Graph, distance, place_of
from tfctr.topology.seats import Seat

# The input pipeline and a collective must never wait for each other's thread.
_MIN_INTER_OP = 2


def plan(
    machine: Machine,
    ranks_per_node: int | None = None,
    ssd: Mapping[str, str | None] | None = None,
    num_hosts: int = 1,
    use_gpus: bool | Sequence[int] = True,
    share_cpus: bool = False,
) -> Plan:
    """Gives each rank of a machine its GPU, node, CPUs, devices and threads.

    Ranks train in step, so the slowest one sets the pace. One after the other, a rank
    gets the GPU that the fewest others use; of those, one whose node has a hardware
    thread left; of those, one in the node that leaves it the most cores; of those, the
    one with the best ways to the GPUs given out before. Its CPUs are whole cores of the
    node of the GPU, or of the nearest one where that is full. Without GPUs, ranks go
    where they get the most cores, and fewer ranks than nodes get several nodes each.
    Network interface and SSD are those with the best way to the GPU, or to the node.
    Nothing is drawn: the same machine gives the same plan.

    Args:
        machine: The machine. Read it before anything is pinned.
        ranks_per_node: Integer. How many ranks run on this machine (a "node" of the
            job). `None` means one for each GPU, or without GPUs one for each NUMA node.
        ssd: Mapping from directories to the names of the NVMe devices below them, or
            to `None` where that is unknown. `None` means no directories.
        num_hosts: Integer. How many machines the job has.
        use_gpus: Boolean or integers. Whether ranks get GPUs, or the `Gpu.id`s of those
            that they get. `plan` does not look at `CUDA_VISIBLE_DEVICES`; the commands
            `topology` and `run` do, and hand on the numbers in it.
        share_cpus: Boolean. Whether more ranks than hardware threads are planned: the
            ranks of a node then share all its CPUs.

    Raises:
        ValueError: If a number is not positive, there are more ranks than hardware
            threads, or a GPU of `use_gpus` is not there.

    Example:

    >>> node = NumaNode(id=0, cpus=(0, 1, 2, 3), memory_bytes=2**30)
    >>> cores = Core(0, None, 0, (0, 2)), Core(1, None, 0, (1, 3))
    >>> machine = Machine((0, 1, 2, 3), (), (node,), cores)
    >>> [rank.cpus for rank in plan(machine, 2).ranks]
    [(0, 2), (1, 3)]
    """
    homes = seats.homes_of(machine)
    gpus = _chosen(machine, use_gpus)
    num_cpus = sum(home.num_cpus for home in homes)
    if ranks_per_node is None:
        ranks_per_node = min(len(gpus) or len(homes), num_cpus)
    _check("ranks_per_node", ranks_per_node)
    _check("num_hosts", num_hosts)
    if ranks_per_node > num_cpus and not share_cpus:
        raise ValueError(
            "Each rank must have a hardware thread of its own. Received: "
            f"ranks_per_node={ranks_per_node}, with {num_cpus} hardware threads that "
            f"may be used, and {len(gpus)} GPUs. Plan for {num_cpus} ranks or fewer; "
            "ask for more CPUs, where a batch system or a cgroup has given these; or "
            "let ranks share them by share_cpus=True (--share-cpus)."
        )
    graph = Graph(machine)
    found = seats.choose(machine, homes, gpus, ranks_per_node, graph)
    ranks = tuple(_rank_plans(machine, found, graph, ssd or {}))
    routes = [graph.route(a, b) for a in gpus for b in gpus if a != b]
    chosen = collectives.choose(routes, [rank.gpu for rank in ranks], num_hosts)
    return Plan(ranks, *chosen)


def _chosen(machine: Machine, use_gpus: bool | Sequence[int]) -> tuple[Gpu, ...]:
    if isinstance(use_gpus, bool):
        return machine.gpus if use_gpus else ()
    known = [gpu.id for gpu in machine.gpus]
    if not isinstance(use_gpus, Sequence) or not set(use_gpus) <= set(known):
        raise ValueError(
            f"`use_gpus` must be among the GPUs {known}, or True or False. Received: "
            f"use_gpus={use_gpus!r}. `python -m tfctr topology` lists them."
        )
    return tuple(gpu for gpu in machine.gpus if gpu.id in use_gpus)


def _check(name: str, value: int) -> None:
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < 1:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}."
        )


class _Devices:
    """Gives out devices of one kind: the nearest, and of those the least used."""

    def __init__(self, graph: Graph, found: Sequence[Nic | Nvme]) -> None:
        self._graph = graph
        self._places = {device.name: place_of(device) for device in found}
        self._used: Counter[str] = Counter()

    def cost(self, source: str, name: str | None) -> float:
        if name not in self._places:
            return float("inf")
        cost = self._graph.cost(source, self._places[name])
        return float("inf") if cost is None else cost

    def take(self, source: str) -> str | None:
        if not self._places:
            return None
        name = min(self._places, key=lambda x: (self.cost(source, x), self._used[x], x))
        self._used[name] += 1
        return name


def _rank_plans(
    machine: Machine,
    found: list[Seat],
    graph: Graph,
    ssd: Mapping[str, str | None],
) -> Iterable[RankPlan]:
    # Where there is RDMA, ranks talk by that.
    nics = _Devices(graph, [x for x in machine.nics if x.rdma] or machine.nics)
    nvme = _Devices(graph, machine.nvme)
    used: Counter[str] = Counter()
    gpu_load = Counter(seat.gpu.id for seat in found if seat.gpu)
    memory = _Memory(machine, found)
    quota = machine.cpu_quota
    share = None if quota is None else max(1, int(quota / len(found)))
    for rank, seat in enumerate(found):
        node = seat.homes[0].node
        source = f"node:{node.id}" if seat.gpu is None else place_of(seat.gpu)
        directory = min(
            ssd, key=lambda x: (nvme.cost(source, ssd[x]), used[x]), default=None
        )
        used[directory or ""] += 1
        intra_op = min(seat.num_cores, share or seat.num_cores)
        inter_op = min(len(seat.cpus), share or len(seat.cpus))
        numa_nodes = tuple(home.node.id for home in seat.homes)
        yield RankPlan(
            local_rank=rank,
            numa_node=node.id,
            numa_nodes=numa_nodes,
            cpus=seat.cpus,
            intra_op_threads=intra_op,
            inter_op_threads=max(_MIN_INTER_OP, inter_op),
            # The store works on the intra-op threads.
            store_threads=intra_op,
            memory_policy=memory.policy(seat),
            memory_nodes=memory.nodes(seat),
            memory_bytes=memory.bytes(seat),
            gpu=None if seat.gpu is None else seat.gpu.id,
            shared_gpu=seat.gpu is not None and gpu_load[seat.gpu.id] > 1,
            nic=nics.take(source),
            nvme=nvme.take(source) if directory is None else ssd[directory],
            ssd=directory,
            devices=(
                tuple(f"/CPU:{index}" for index in range(len(numa_nodes)))
                if seat.gpu is None
                else (f"/GPU:{seat.gpu.id}",)
            ),
        )


class _Memory:
    """Which memory ranks use."""

    def __init__(self, machine: Machine, found: list[Seat]) -> None:
        self._machine = machine
        self._num_ranks = len(found)
        self._users = Counter(id_ for seat in found for id_ in self.nodes(seat))
        nodes = machine.numa_nodes
        with_memory = {x.id for x in nodes if x.memory_bytes} or {x.id for x in nodes}
        # Bound ranks cannot reach the other nodes, even when theirs are full.
        self._all_used = with_memory <= set(self._users)

    def nodes(self, seat: Seat) -> tuple[int, ...]:
        found = [self._with_memory(home.node).id for home in seat.homes]
        return tuple(dict.fromkeys(found))

    def policy(self, seat: Seat) -> str:
        if len(self.nodes(seat)) > 1:
            return "interleave"
        return "bind" if self._all_used else "prefer"

    def bytes(self, seat: Seat) -> int:
        sizes = {node.id: node.memory_bytes for node in self._machine.numa_nodes}
        own = sum(sizes[id_] // self._users[id_] for id_ in self.nodes(seat))
        limit = self._machine.memory_limit_bytes
        if limit is None:
            return own
        return min(own or limit, limit // self._num_ranks)

    def _with_memory(self, node: NumaNode) -> NumaNode:
        """A node may have CPUs and no memory: then the nearest that has some."""
        nodes = self._machine.numa_nodes
        own = next(x for x in nodes if x.id == node.id)
        some = [x for x in nodes if x.memory_bytes] or [own]
        return min(
            some, key=lambda x: (x != own, distance(self._machine, own, x), x.id)
        )
