"""What the NVIDIA driver tells about GPUs, through `nvidia-ml-py`."""

import dataclasses
import importlib
from typing import Any

from tfctr.topology import pci
from tfctr.topology.machine import Gpu, NvlinkPeer
from tfctr.topology.reading import Device, Reading

# Bytes a second of one link in one direction, by the driver's number of its version:
# 1 is NVLink 1, 2 to 6 are NVLink 2 to 4, 7 is NVLink 5.
_LINK_SPEED = {1: 20 * 10**9, **dict.fromkeys(range(2, 7), 25 * 10**9)}
_NEWEST_SPEED = 50 * 10**9
# What links end in, as the driver numbers it.
_KINDS = {0: "gpu", 1: "package", 2: "switch"}


def add_gpus(reading: Reading) -> None:
    """Puts the GPUs of the driver in place of those on the PCI bus.

    In a container these are fewer. Without `nvidia-ml-py`, or without a driver, the
    reading stays as it is.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return
    try:
        found = (_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        gpus = [gpu for gpu in found if gpu is not None]
    finally:
        nvml.nvmlShutdown()
    on_bus = {device.what.pci_address: device for device in reading.gpus}
    reading.gpus = []
    for index, gpu in enumerate(
        sorted(gpus, key=lambda gpu: pci.order(gpu.pci_address))
    ):
        known = on_bus.get(gpu.pci_address, Device(gpu))
        what = dataclasses.replace(gpu, id=index, pci_path=known.what.pci_path)
        reading.gpus.append(dataclasses.replace(known, what=what))


def _gpu(nvml: Any, index: int) -> Gpu | None:
    """A GPU, unless it fell off the bus."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        address = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
        name = _text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError:
        return None
    try:
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        # It uses that of the processor.
        memory = 0
    return Gpu(
        id=0,
        pci_address=pci.normal_address(address),
        name=name,
        memory_bytes=memory,
        nvlink_peers=_peers(nvml, handle),
    )


def _peers(nvml: Any, handle: Any) -> tuple[NvlinkPeer, ...]:
    """Links to one peer add up."""
    speeds: dict[tuple[str, str], int] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            address = _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
            kind = _KINDS.get(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
            version = nvml.nvmlDeviceGetNvLinkVersion(handle, link)
        except nvml.NVMLError:
            # Past the last link, on a GPU without any, or in a virtual machine.
            continue
        if kind is not None:
            peer = (kind, pci.normal_address(address))
            speed = _LINK_SPEED.get(version, _NEWEST_SPEED)
            speeds[peer] = speeds.get(peer, 0) + speed
    return tuple(NvlinkPeer(*peer, speed) for peer, speed in sorted(speeds.items()))


def _text(value: str | bytes) -> str:
    """Versions differ in what they return."""
    return value.decode() if isinstance(value, bytes) else value
