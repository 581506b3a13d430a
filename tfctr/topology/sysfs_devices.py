"""GPUs, network interfaces and NVMe devices, as sysfs shows them."""

import re
from dataclasses import dataclass

from tfctr.topology import pci
from tfctr.topology.cpu_mask import EVERYTHING, Nesting
from tfctr.topology.devices import Interface, gpus, nics, nvme
from tfctr.topology.reading import Reading
from tfctr.topology.root import Root

_PCI = "sys/bus/pci/devices"


@dataclass(frozen=True)
class _PciDevice:
    address: str
    class_id: int
    path: tuple[str, ...]

    @property
    def bus(self) -> str:
        """The bus at the root, by which hwloc places all devices below it."""
        return self.path[0] if len(self.path) > 1 else self.address[:-5]


class _Places:
    """Tells which hardware threads are next to a device."""

    def __init__(self, root: Root, reading: Reading, nesting: Nesting, complete: int):
        self._root = root
        self._reading = reading
        self._nesting = nesting
        self._complete = complete
        self._of_bus: dict[str, int] = {}

    def of_bus(self, devices: list[_PciDevice]) -> None:
        """Places a bus where its first device is: hwloc does so for whole buses."""
        first = min(
            devices, key=lambda device: (len(device.path), pci.order(device.address))
        )
        self._of_bus[first.bus] = self.of_pci(first.address)

    def of_device(self, device: _PciDevice) -> int:
        return self._of_bus[device.bus]

    def of_pci(self, address: str) -> int:
        folder = f"{_PCI}/{address}"
        near = self._root.mask(f"{folder}/local_cpus")
        if near is None:
            near = self._root.cpu_list(f"{folder}/local_cpulist")
        return self._placed(near) if near else self.of_node(folder)

    def of_node(self, folder: str) -> int:
        """By the NUMA node that a device names, or the whole machine."""
        id_ = self._root.integer(f"{folder}/numa_node")
        near = (node.cpus for node in self._reading.nodes if node.id == id_)
        return next(near, 0) or EVERYTHING

    def _placed(self, near: int) -> int:
        near &= self._complete
        return self._nesting.place(near, self._complete) if near else EVERYTHING


def add(root: Root, reading: Reading, nesting: Nesting, complete: int) -> set[int]:
    """Adds the devices to a reading that has processors and nodes.

    Returns:
        The sets of CPUs next to which any devices are, those of no interest included.
    """
    places = _Places(root, reading, nesting, complete)
    devices = _pci_devices(root)
    buses: dict[str, list[_PciDevice]] = {}
    for device in devices.values():
        buses.setdefault(device.bus, []).append(device)
    for on_bus in sorted(buses.values(), key=lambda group: pci.order(group[0].address)):
        places.of_bus(on_bus)
    near = {address: places.of_device(device) for address, device in devices.items()}
    known_to_driver = {
        pci.normal_address(name)
        for name in root.names("proc/driver/nvidia/gpus")
        if ":" in name
    }
    reading.gpus = gpus(
        (address, device.path, near[address])
        for address, device in devices.items()
        if address in known_to_driver
        or pci.is_gpu(device.class_id, root.integer(f"{_PCI}/{address}/vendor", 16))
    )

    def interfaces(kind: str, pattern: str) -> list[Interface]:
        return _interfaces(root, kind, pattern, near, places)

    reading.nics = nics(
        interfaces("net", r".+"), interfaces("infiniband", r"(?!scif).+")
    )
    reading.nvme = nvme(interfaces("block", r"nvme\d+n\d+"))
    return {
        near[address]
        for address, device in devices.items()
        if not pci.is_bridge(device.class_id)
    }


def _pci_devices(root: Root) -> dict[str, _PciDevice]:
    """Those that hwloc shows, by address."""
    found = {}
    for address in sorted(
        filter(pci.ADDRESS.fullmatch, root.names(_PCI)), key=pci.order
    ):
        class_id = (root.integer(f"{_PCI}/{address}/class", 16) or 0) >> 8
        if pci.is_shown(class_id):
            path = pci.path_in(root.link(f"{_PCI}/{address}") or "") or (address,)
            found[address] = _PciDevice(address, class_id, path)
    return found


def _interfaces(
    root: Root, kind: str, pattern: str, near: dict[str, int], places: _Places
) -> list[Interface]:
    """The devices of a class that are hardware and no USB sticks."""
    found = []
    folder = f"sys/class/{kind}"
    for name in root.names(folder):
        # Kernels before 2.6.26 have no link here, but one inside.
        link = root.link(f"{folder}/{name}") or root.link(f"{folder}/{name}/device")
        if not re.fullmatch(pattern, name) or link is None:
            continue
        if "/virtual/" in link or "/usb" in link:
            continue
        path = pci.path_in(link)
        address = path[-1] if path and pci.ADDRESS.fullmatch(path[-1]) else None
        if address is None:
            place = places.of_node(f"{folder}/{name}/device")
        elif address in near:
            place = near[address]
        else:
            place = places.of_pci(address)
        found.append(Interface(name, address, path if address else (), place))
    return found
