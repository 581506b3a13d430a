"""The matrices in the XML of hwloc: how far NUMA nodes are, how fast NVLinks are."""

from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

from tfctr.topology.machine import NvlinkPeer
from tfctr.topology.reading import Reading

# A bit of the attribute `kind`.
_IS_LATENCY = 4
_LOCAL = 10


@dataclass(frozen=True)
class NvlinkEnd:
    """What a link ends in: kind and id of an `NvlinkPeer`."""

    kind: str
    id: str


def add_node_distances(
    reading: Reading, topology: ElementTree.Element, version: int
) -> None:
    """Adds the latencies between NUMA nodes, where the file has them."""
    found = _old_distances(topology) if version < 2 else _distances(topology)
    for ids, values in found:
        if version < 2 and len(values) == len(reading.nodes) ** 2:
            ids = [node.id for node in reading.nodes]
        if len(ids) > 1 and len(values) == len(ids) ** 2:
            reading.distance_ids, reading.distances = ids, _rows(values, len(ids))
            # Version 1 may have more than one; those of the firmware begin with 10.
            if values[0] == _LOCAL:
                break


def _distances(topology: ElementTree.Element) -> list[tuple[list[int], list[int]]]:
    os_indexes = {
        element.get("gp_index"): element.get("os_index", "0")
        for element in topology.iter("object")
        if element.get("type") == "NUMANode"
    }
    found = []
    for matrix in topology.findall("distances2"):
        kind = int(matrix.get("kind", "0"))
        if matrix.get("type") == "NUMANode" and kind & _IS_LATENCY:
            ids = _words(matrix, "indexes")
            if matrix.get("indexing") == "gp":
                ids = [os_indexes.get(index, index) for index in ids]
            values = [int(value) for value in _words(matrix, "u64values")]
            found.append(([int(id_) for id_ in ids], values))
    return found


def _old_distances(topology: ElementTree.Element) -> list[tuple[list[int], list[int]]]:
    """The matrices of version 1, which are over all objects of some level."""
    found = []
    for matrix in topology.findall("object/distances"):
        base = float(matrix.get("latency_base", "1"))
        values = [
            round(base * float(latency.get("value", "0")))
            for latency in matrix.findall("latency")
        ]
        found.append(([0] * int(matrix.get("nbobjs", "0")), values))
    return found


def nvlinks(
    topology: ElementTree.Element, ends: Mapping[str, NvlinkEnd]
) -> dict[str, tuple[NvlinkPeer, ...]]:
    """The peers of each GPU, by its PCI address.

    Args:
        topology: The root of the file.
        ends: What the objects are that a matrix may name, by their `gp_index`.
    """
    peers: dict[str, tuple[NvlinkPeer, ...]] = {}
    for matrix in [
        *topology.findall("distances2"),
        *topology.findall("distances2hetero"),
    ]:
        if matrix.get("name") != "NVLinkBandwidth":
            continue
        # As `OSDev:17` where types differ, else as 17.
        names = [word.rpartition(":")[2] for word in _words(matrix, "indexes")]
        values = [int(value) for value in _words(matrix, "u64values")]
        if len(values) != len(names) ** 2:
            raise ValueError(f"{len(values)} bandwidths between {len(names)} objects")
        for name in names:
            if name not in ends:
                raise ValueError(f"the object '{name}' is missing")
        members = [ends[name] for name in names]
        for end, row in zip(members, _rows(values, len(names)), strict=True):
            if end.kind == "gpu":
                # What a GPU reaches in itself stands in the diagonal.
                found = (
                    NvlinkPeer(other.kind, other.id, megabytes * 10**6)
                    for other, megabytes in zip(members, row, strict=True)
                    if megabytes and other != end
                )
                peers[end.id] = tuple(sorted(found, key=lambda one: (one.kind, one.id)))
    return peers


def _words(matrix: ElementTree.Element, tag: str) -> list[str]:
    return [word for part in matrix.findall(tag) for word in (part.text or "").split()]


def _rows(values: list[int], width: int) -> list[list[int]]:
    return [values[start : start + width] for start in range(0, len(values), width)]
