"""From what a source says to what may be used: the rules of hwloc, for any source."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tfctr.topology import cpu_mask
from tfctr.topology.cpu_mask import EVERYTHING, to_cpus, to_list
from tfctr.topology.machine import Cache, Core, Gpu, Nic, NumaNode, Nvme, Package

_LOCAL_DISTANCE = 10

Kind = TypeVar("Kind", Gpu, Nic, Nvme)


@dataclass(frozen=True)
class Part:
    """A package, core or cache, with all its hardware threads, allowed or not."""

    cpus: int
    id: int | None = None
    model: str = ""
    level: int = 0
    kind: str = ""
    size_bytes: int = 0
    # What stands in it besides: a mask of the ids of NUMA nodes, and any PCI device.
    nodes: int = 0
    has_devices: bool = False

    def is_kept(self, allowed_cpus: int, allowed_nodes: int) -> bool:
        """Whether something is left of it."""
        has_own = self.cpus & allowed_cpus or self.nodes & allowed_nodes
        return bool(has_own) or self.has_devices


@dataclass(frozen=True)
class Node:
    """A NUMA node with all hardware threads near it, allowed or not."""

    id: int
    cpus: int
    memory_bytes: int = 0
    # Whether Linux lists these CPUs in the node itself.
    has_own_cpus: bool = True


@dataclass(frozen=True)
class Device(Generic[Kind]):
    """A device, and the mask of the hardware threads next to it."""

    what: Kind
    near: int = EVERYTHING


@dataclass
class Reading:
    """All that a source tells, with sets of CPUs as masks."""

    threads: int = 0
    packages: list[Part] = field(default_factory=list)
    cores: list[Part] = field(default_factory=list)
    caches: list[Part] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    # A square matrix over the nodes of these ids.
    distance_ids: Sequence[int] = ()
    distances: Sequence[Sequence[int]] = ()
    gpus: list[Device[Gpu]] = field(default_factory=list)
    nics: list[Device[Nic]] = field(default_factory=list)
    nvme: list[Device[Nvme]] = field(default_factory=list)
    allowed_cpus: int = EVERYTHING
    allowed_nodes: int = EVERYTHING
    memory_bytes: int = 0
    memory_limit_bytes: int | None = None
    cpu_quota: float | None = None

    def parts(self) -> dict[str, Any]:
        """The arguments of `Machine`: what is online and allowed, in order.

        Raises:
            ValueError: If no CPU may be used.
        """
        allowed = self.threads & self.allowed_cpus
        if not allowed:
            raise ValueError(
                "A machine must have a CPU that is online and allowed. Received: "
                f"{_named(self.threads)} online, {_named(self.allowed_cpus)} allowed. "
                "Look at the cgroup and the affinity of the process."
            )
        kept_nodes = [
            node
            for node in sorted(self.nodes, key=lambda node: node.id)
            if self.allowed_nodes >> node.id & 1
        ]
        # All memory is in some node.
        kept_nodes = kept_nodes or [Node(0, self.threads, self.memory_bytes)]
        packages, cores = (
            [
                part
                for part in sorted(parts, key=lambda part: cpu_mask.first(part.cpus))
                if part.is_kept(allowed, self.allowed_nodes)
            ]
            for parts in (self.packages, self.cores)
        )
        homes = _homes(kept_nodes)
        return {
            "cpus": to_cpus(allowed),
            "packages": tuple(
                Package(part.id, to_cpus(part.cpus & allowed), part.model)
                for part in packages
            ),
            "numa_nodes": self._numa_nodes(kept_nodes, homes, allowed),
            "cores": tuple(
                Core(
                    part.id,
                    _place_around(part.cpus, [other.cpus for other in packages]),
                    _home_around(part.cpus, homes),
                    to_cpus(part.cpus & allowed),
                )
                for part in cores
            ),
            "caches": tuple(
                Cache(part.level, part.kind, part.size_bytes, to_cpus(cpus))
                for part in sorted(self.caches, key=_by_level)
                if (cpus := part.cpus & allowed)
            ),
            "gpus": tuple(_located(self.gpus, homes, allowed)),
            "nics": tuple(_located(self.nics, homes, allowed)),
            "nvme": tuple(_located(self.nvme, homes, allowed)),
            "memory_limit_bytes": self.memory_limit_bytes,
            "cpu_quota": self.cpu_quota,
        }

    def _numa_nodes(
        self, nodes: list[Node], homes: list[Node], allowed: int
    ) -> tuple[NumaNode, ...]:
        place = {id_: index for index, id_ in enumerate(self.distance_ids)}
        known = all(node.id in place for node in nodes)

        def distances(node: Node) -> tuple[int, ...]:
            if len(nodes) == 1:
                return (_LOCAL_DISTANCE,)
            if not known:
                return ()
            row = self.distances[place[node.id]]
            return tuple(row[place[other.id]] for other in nodes)

        return tuple(
            NumaNode(
                id=node.id,
                cpus=to_cpus(node.cpus & allowed),
                memory_bytes=node.memory_bytes,
                distances=distances(node),
                memory_only=node not in homes or not node.cpus & allowed,
            )
            for node in nodes
        )


def _by_level(part: Part) -> tuple[int, str, int]:
    return -part.level, part.kind, cpu_mask.first(part.cpus)


def _homes(nodes: list[Node]) -> list[Node]:
    """The nodes whose CPUs no other has: of several around one CPU, the narrowest."""
    homes, covered = [], 0
    for node in sorted(
        nodes, key=lambda node: (not node.has_own_cpus, node.cpus.bit_count(), node.id)
    ):
        if node.cpus and not node.cpus & covered:
            homes.append(node)
            covered |= node.cpus
    return homes


def _place_around(cpus: int, others: list[int]) -> int | None:
    around = (place for place, other in enumerate(others) if cpus & other == cpus)
    return next(around, None)


def _home_around(cpus: int, homes: list[Node]) -> int | None:
    return next((node.id for node in homes if cpus & node.cpus == cpus), None)


def _located(
    devices: list[Device[Kind]], homes: list[Node], allowed: int
) -> Iterable[Kind]:
    for device in devices:
        near = [node for node in homes if node.cpus & device.near]
        yield dataclasses.replace(
            device.what,
            numa_node=near[0].id if len(near) == 1 else None,
            cpus=to_cpus(device.near & allowed),
        )


def _named(cpus: int) -> str:
    if cpus == EVERYTHING:
        return "all"
    return to_list(to_cpus(cpus)) or "none"
