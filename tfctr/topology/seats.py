"""Which node, GPU and CPUs each rank of a machine gets."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tfctr.topology.machine import Gpu, Machine, NumaNode
from tfctr.topology.routes import Graph, distance, place_of


@dataclass
class Home:
    """A NUMA node that ranks may live in."""

    node: NumaNode
    # The hardware threads of each core; cores that share a cache stand together.
    cores: list[tuple[int, ...]]
    ranks: int = 0

    @property
    def num_cpus(self) -> int:
        return sum(map(len, self.cores))

    @property
    def cores_for_next(self) -> Fraction:
        return Fraction(len(self.cores), self.ranks + 1)

    def pieces(self) -> list[set[int]]:
        """The CPUs of each of its ranks: whole cores while they last, then threads.

        The first ranks get one more where the number does not divide. More ranks than
        threads share them all.
        """
        units = self.cores
        if self.ranks > len(units):
            units = [(cpu,) for core in units for cpu in core]
        if self.ranks > len(units):
            return [set().union(*units)] * self.ranks
        size, rest = divmod(len(units), self.ranks)
        ends = [rank * size + min(rank, rest) for rank in range(self.ranks + 1)]
        return [
            set().union(*units[ends[rank] : ends[rank + 1]])
            for rank in range(self.ranks)
        ]


@dataclass
class Seat:
    """Where a rank sits: its nodes, its GPU if any, and then its CPUs."""

    homes: list[Home]
    gpu: Gpu | None = None
    cpus: tuple[int, ...] = ()
    # At least 1, and less than those of `cpus` where ranks share them.
    num_cores: int = 0


def choose(
    machine: Machine,
    homes: list[Home],
    gpus: Sequence[Gpu],
    num_ranks: int,
    graph: Graph,
) -> list[Seat]:
    """A seat for each rank, by local rank; those of one node follow each other."""
    if gpus:
        seats = _with_gpus(machine, homes, gpus, num_ranks, graph)
    elif num_ranks < len(homes):
        seats = _over_nodes(machine, homes, num_ranks)
    else:
        seats = _in_nodes(homes, num_ranks)
    pieces = {home.node.id: home.pieces() for home in homes if home.ranks}
    for seat in seats:
        cpus: set[int] = set()
        for home in seat.homes:
            mine = pieces[home.node.id].pop(0)
            cpus |= mine
            cores = sum(1 for core in home.cores if mine & set(core))
            sharing = home.ranks if home.ranks > home.num_cpus else 1
            seat.num_cores += max(1, cores // sharing)
        seat.cpus = tuple(sorted(cpus))
    return seats


def homes_of(machine: Machine) -> list[Home]:
    """The nodes with CPUs that may be used."""
    nodes = [x for x in machine.numa_nodes if x.cpus and not x.memory_only]
    # Where a cgroup keeps us off the memory beside all our CPUs, some memory is left.
    nodes = nodes or [dataclasses.replace(machine.numa_nodes[0], cpus=machine.cpus)]
    top = max((cache.level for cache in machine.caches), default=0)
    last = {x.cpus[0]: x.cpus for x in machine.caches if x.level == top}
    cache_of = {cpu: first for first, cpus in last.items() for cpu in cpus}
    homes = []
    for node in nodes:
        left = set(node.cpus)
        cores = []
        for core in machine.cores:
            if here := tuple(cpu for cpu in core.cpus if cpu in left):
                cores.append(here)
                left -= set(here)
        cores += [(cpu,) for cpu in left]
        cores.sort(key=lambda cpus: (cache_of.get(cpus[0], -1), cpus))
        homes.append(Home(node, cores))
    return homes


def _with_gpus(
    machine: Machine,
    homes: list[Home],
    gpus: Sequence[Gpu],
    num_ranks: int,
    graph: Graph,
) -> list[Seat]:
    beside = {gpu.id: _homes_beside(machine, homes, gpu) for gpu in gpus}
    costs = {
        (a.id, b.id): graph.cost(place_of(a), place_of(b)) or 0
        for a in gpus
        for b in gpus
        if a != b
    }
    load: Counter[int] = Counter()
    seats: list[Seat] = []
    for _ in range(num_ranks):
        # Cores far from the GPU are better than none, and than a GPU that is shared.
        free = [home for home in homes if home.ranks < home.num_cpus] or homes
        options = [
            (gpu, home) for gpu in gpus for home in _homes_beside(machine, free, gpu)
        ]
        chosen = [seat.gpu.id for seat in seats if seat.gpu]

        def preference(
            option: tuple[Gpu, Home], chosen: list[int] = chosen
        ) -> tuple[object, ...]:
            gpu, home = option
            ways = sum(costs.get((gpu.id, other), 0) for other in set(chosen))
            is_away = home not in beside[gpu.id]
            cores = home.cores_for_next
            return load[gpu.id], is_away, -cores, ways, gpu.id, home.node.id

        gpu, home = min(options, key=preference)
        load[gpu.id] += 1
        home.ranks += 1
        seats.append(Seat([home], gpu))
    return sorted(
        seats, key=lambda seat: (seat.gpu.id if seat.gpu else 0, seat.homes[0].node.id)
    )


def _homes_beside(machine: Machine, homes: list[Home], gpu: Gpu) -> list[Home]:
    """Its node; where that is none of these homes, the nearest; unknown, all."""
    if gpu.numa_node is not None:
        own = next(x for x in machine.numa_nodes if x.id == gpu.numa_node)

        def away(home: Home) -> tuple[bool, int]:
            # The node itself, even where another is said to be as near.
            return home.node.id != own.id, distance(machine, own, home.node)

        return [min(homes, key=away)]
    cpus = set(gpu.cpus)
    return [home for home in homes if cpus & set(home.node.cpus)] or homes


def _in_nodes(homes: list[Home], num_ranks: int) -> list[Seat]:
    seats = []
    for _ in range(num_ranks):
        free = [home for home in homes if home.ranks < home.num_cpus] or homes
        home = min(free, key=lambda home: (-home.cores_for_next, home.node.id))
        home.ranks += 1
        seats.append(Seat([home]))
    return sorted(seats, key=lambda seat: seat.homes[0].node.id)


def _over_nodes(machine: Machine, homes: list[Home], num_ranks: int) -> list[Seat]:
    """Several nodes for each rank: the first that is left, and those nearest to it."""
    left = list(homes)
    seats = []
    for rank in range(num_ranks):
        size = len(homes) // num_ranks + (rank < len(homes) % num_ranks)
        first = left[0].node
        left.sort(key=lambda x: (distance(machine, first, x.node), x.node.id))
        # The node itself, even where another is said to be as near.
        left.sort(key=lambda x: x.node != first)
        seats.append(Seat(left[:size]))
        left = sorted(left[size:], key=lambda x: x.node.id)
    for seat in seats:
        for home in seat.homes:
            home.ranks = 1
    return seats
