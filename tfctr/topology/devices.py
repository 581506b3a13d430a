"""From devices as sources list them to those of a machine."""

from collections.abc import Iterable
from dataclasses import dataclass

from tfctr.topology import pci
from tfctr.topology.machine import Gpu, Nic, Nvme
from tfctr.topology.reading import Device


@dataclass(frozen=True)
class Interface:
    """A named device of Linux, and the mask of the hardware threads next to it."""

    name: str
    address: str | None
    path: tuple[str, ...]
    near: int


def gpus(found: Iterable[tuple[str, tuple[str, ...], int]]) -> list[Device[Gpu]]:
    """The GPUs of these addresses, paths and masks, in the order of addresses."""
    ordered = sorted(found, key=lambda one: pci.order(one[0]))
    return [
        Device(Gpu(id=index, pci_address=address, pci_path=path), near)
        for index, (address, path, near) in enumerate(ordered)
    ]


def nics(networks: list[Interface], rdma: list[Interface]) -> list[Device[Nic]]:
    """Each network interface with the RDMA devices of the same hardware.

    RDMA devices without a network interface stand for themselves.
    """
    with_network = {one.address for one in networks if one.address is not None}
    alone = [one for one in rdma if one.address not in with_network]
    found = []
    for one in sorted([*networks, *alone], key=lambda one: one.name):
        partners = tuple(
            other.name
            for other in rdma
            if other is one or (other.address == one.address is not None)
        )
        found.append(Device(Nic(one.name, partners, one.address, one.path), one.near))
    return found


def nvme(blocks: list[Interface]) -> list[Device[Nvme]]:
    """The NVMe devices of these blocks."""
    ordered = sorted(blocks, key=lambda one: one.name)
    return [Device(Nvme(one.name, one.address, one.path), one.near) for one in ordered]
