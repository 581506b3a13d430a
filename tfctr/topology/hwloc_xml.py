"""Reads a machine from the XML that hwloc's `lstopo` writes, of versions 1, 2 and 3."""

import os
import re
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from tfctr.topology import cpu_mask, pci
from tfctr.topology.cpu_mask import EVERYTHING
from tfctr.topology.devices import Interface, gpus, nics, nvme
from tfctr.topology.hwloc_distances import NvlinkEnd, add_node_distances, nvlinks
from tfctr.topology.machine import Gpu, NvlinkPeer
from tfctr.topology.reading import Node, Part, Reading

_SOURCE = (
    "Write the file with `lstopo machine.xml`, of hwloc 1.0 or newer, on that machine."
)
_OLD_TYPES = {"socket": "package", "node": "numanode", "system": "machine"}
_CACHE = re.compile(r"l(\d)(i|d|u)?(?:cache)?")
_CACHE_KINDS = {"0": "unified", "1": "data", "2": "instruction"}
# Kinds of OS devices: numbers in versions 1 and 2, bits in version 3.
_NETWORK, _RDMA = ("2", 16), ("3", 32)


@dataclass(frozen=True)
class _Place:
    """Where an object stands: CPUs and PCI devices around it."""

    cpus: int = EVERYTHING
    path: tuple[str, ...] = ()

    @property
    def address(self) -> str | None:
        last = self.path[-1] if self.path else ""
        return last if pci.ADDRESS.fullmatch(last) else None


def read(path: str | os.PathLike[str]) -> Reading:
    """What a file of hwloc tells.

    Raises:
        ValueError: If the file cannot be read or is no XML of hwloc.
    """
    return _Import(os.fspath(path)).run()


class _Import:
    """One file on its way into a `Reading`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reading = Reading()
        self._gpus: dict[str, tuple[_Place, ElementTree.Element]] = {}
        self._networks: list[Interface] = []
        self._rdma: list[Interface] = []
        self._blocks: list[Interface] = []
        self._version = 0
        # What a matrix may name, by number.
        self._ends: dict[str, NvlinkEnd] = {}

    def run(self) -> Reading:
        topology = self._parse()
        machine = topology.find("object")
        if machine is None or machine.get("cpuset") is None:
            raise self._error("one <object> with a cpuset in <topology>", topology)
        try:
            self._version = int(topology.get("version", "1").partition(".")[0])
            self._object(machine, _Place())
            self._finish(topology, machine)
        except (OverflowError, ValueError) as error:
            raise self._error(
                f"numbers and sets of CPUs ({error})", topology
            ) from error
        if self._reading.threads <= 0:
            raise self._error("objects of type PU, each with a cpuset", topology)
        return self._reading

    def _parse(self) -> ElementTree.Element:
        try:
            topology = ElementTree.parse(self._path).getroot()
        except OSError as error:
            raise ValueError(
                "The XML of hwloc must be a file that can be read. Received: "
                f"'{self._path}' ({error.strerror}). {_SOURCE}"
            ) from error
        except (ElementTree.ParseError, LookupError, ValueError) as error:
            # The latter are encodings that are unknown.
            raise ValueError(
                "The XML of hwloc must be whole and well formed. Received: "
                f"'{self._path}' ({error}). {_SOURCE}"
            ) from error
        if topology.tag != "topology":
            raise self._error("a <topology> element", topology)
        return topology

    def _error(self, expected: str, root: ElementTree.Element) -> ValueError:
        return ValueError(
            f"The XML of hwloc must have {expected}. Received: '{self._path}', a "
            f"<{root.tag}> with {len(list(root.iter('object')))} objects. {_SOURCE}"
        )

    def _object(self, element: ElementTree.Element, place: _Place) -> None:
        kind = _type(element)
        own = element.get("complete_cpuset") or element.get("cpuset")
        if kind in ("pcidev", "bridge"):
            place = self._pci(element, kind, place)
        elif kind == "osdev":
            self._os_device(element, place)
        elif own is not None:
            cpus = cpu_mask.from_hex(own) & place.cpus
            self._processor(element, kind, cpus, place)
            place = replace(place, cpus=cpus)
        for child in element.findall("object"):
            self._object(child, place)

    def _processor(
        self, element: ElementTree.Element, kind: str, cpus: int, place: _Place
    ) -> None:
        reading, id_ = self._reading, _id(element)
        if kind == "pu":
            # One that is in `complete_cpuset` only is offline.
            reading.threads |= cpu_mask.from_hex(element.get("cpuset") or "0") & cpus
        elif kind == "core":
            reading.cores.append(_part(element, cpus))
        elif kind == "package":
            reading.packages.append(_part(element, cpus))
            self._ends[element.get("gp_index", "")] = NvlinkEnd(
                "package", "" if id_ is None else str(id_)
            )
        elif kind == "cache":
            reading.caches.append(_cache(element, cpus))
        elif kind == "numanode":
            if not cpus and self._version == 1 and _info(element, "Type") == "MCDRAM":
                # Version 1 gives the second memory of a Xeon Phi no CPUs.
                cpus = place.cpus
            memory = int(element.get("local_memory", 0))
            reading.nodes.append(Node(id_ or 0, cpus, memory))

    def _pci(self, element: ElementTree.Element, kind: str, place: _Place) -> _Place:
        address = element.get("pci_busid")
        if address is None:
            bus = element.get("bridge_pci", "")
            return replace(place, path=(f"pci{bus.replace(':[', ':').split('-')[0]}",))
        address = pci.normal_address(address)
        place = replace(place, path=(*place.path, address))
        match = re.match(r"([0-9a-f]{4}) \[([0-9a-f]{4}):", element.get("pci_type", ""))
        class_id, vendor = (
            (int(part, 16) for part in match.groups()) if match else (0, 0)
        )
        if kind == "pcidev":
            is_switch = element.get("subtype") == "NVSwitch"
            end = NvlinkEnd("switch" if is_switch else "gpu", address)
            self._ends[element.get("gp_index", "")] = end
            if pci.is_gpu(class_id, vendor):
                self._gpus[address] = (place, element)
        return place

    def _os_device(self, element: ElementTree.Element, place: _Place) -> None:
        name, kind = element.get("name", ""), element.get("osdev_type", "")
        interface = Interface(name, place.address, place.path, place.cpus)
        if place.address is not None:
            self._ends[element.get("gp_index", "")] = NvlinkEnd("gpu", place.address)
        if self._is(kind, _RDMA):
            self._rdma.append(interface)
        elif self._is(kind, _NETWORK):
            self._networks.append(interface)
        elif re.fullmatch(r"nvme\d+n\d+", name):
            self._blocks.append(interface)

    def _is(self, kind: str, known: tuple[str, int]) -> bool:
        number, bit = known
        return kind == number if self._version < 3 else bool(int(kind or 0) & bit)

    def _finish(
        self, topology: ElementTree.Element, machine: ElementTree.Element
    ) -> None:
        reading = self._reading
        reading.memory_bytes = int(machine.get("local_memory", 0))
        whole = "0xf...f"
        reading.allowed_cpus = cpu_mask.from_hex(machine.get("allowed_cpuset", whole))
        reading.allowed_nodes = cpu_mask.from_hex(machine.get("allowed_nodeset", whole))
        add_node_distances(reading, topology, self._version)
        links = nvlinks(topology, self._ends)
        reading.gpus = [
            replace(
                gpu,
                what=_described(
                    gpu.what,
                    self._gpus[gpu.what.pci_address][1],
                    links.get(gpu.what.pci_address, ()),
                ),
            )
            for gpu in gpus(
                (address, place.path, place.cpus)
                for address, (place, _) in self._gpus.items()
            )
        ]
        reading.nics = nics(self._networks, self._rdma)
        reading.nvme = nvme(self._blocks)


def _type(element: ElementTree.Element) -> str:
    """The type in lower case and by its new name; caches without their level."""
    kind = element.get("type", "").lower()
    is_cache = _CACHE.fullmatch(kind) or kind == "cache"
    return "cache" if is_cache else _OLD_TYPES.get(kind, kind)


def _id(element: ElementTree.Element) -> int | None:
    # Version 1 writes -1 where the firmware gives none, as 32 bits.
    number = int(element.get("os_index", "-1"))
    return None if number in (-1, 0xFFFFFFFF) else number


def _info(element: ElementTree.Element, name: str) -> str:
    infos = (info for info in element.findall("info") if info.get("name") == name)
    found = next(infos, None)
    return "" if found is None else found.get("value", "").strip()


def _part(element: ElementTree.Element, cpus: int) -> Part:
    inside = list(element.iter("object"))
    nodes = (_id(item) or 0 for item in inside if _type(item) == "numanode")
    return Part(
        cpus,
        _id(element),
        _info(element, "CPUModel"),
        nodes=sum(1 << node for node in nodes),
        has_devices=any(_type(item) in ("pcidev", "osdev") for item in inside),
    )


def _cache(element: ElementTree.Element, cpus: int) -> Part:
    return Part(
        cpus,
        level=int(element.get("depth", "0")),
        kind=_CACHE_KINDS.get(element.get("cache_type", ""), "unified"),
        size_bytes=int(element.get("cache_size", "0")),
    )


def _described(
    gpu: Gpu, element: ElementTree.Element, peers: tuple[NvlinkPeer, ...]
) -> Gpu:
    """The GPU with what CUDA or the driver have told hwloc about it."""
    name = size = ""
    for child in element.findall("object"):
        name = name or _info(child, "GPUModel")
        size = size or _info(child, "CUDAGlobalMemorySize")
    # Version 3 adds the unit, which stays the same.
    kilobytes = re.fullmatch(r"(\d+)(KiB)?", size)
    memory = int(kilobytes[1]) << 10 if kilobytes else 0
    return replace(gpu, name=name, memory_bytes=memory, nvlink_peers=peers)
