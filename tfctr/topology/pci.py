"""What the address and the class of a PCI device say."""

import re

ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])")
_BUS = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

_NVIDIA, _AMD = 0x10DE, 0x1002
_DISPLAY, _BRIDGE, _ACCELERATOR = 0x03, 0x06, 0x12
_VGA = 0x0300
# Base classes that hwloc shows: storage, network, display, memory controllers of CXL,
# bridges, processors, serial buses such as InfiniBand, accelerators.
_SHOWN = (0x00, 0x01, 0x02, 0x03, 0x06, 0x0B, 0x12)
_SHOWN_CLASSES = (0x0502, 0x0C04, 0x0C06)


def normal_address(address: str) -> str:
    """The address as Linux writes it: NVML has eight digits for the domain."""
    domain, _, rest = address.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def order(address: str) -> tuple[int, ...]:
    """A key that sorts addresses by their numbers."""
    match = ADDRESS.fullmatch(address)
    return tuple(int(part, 16) for part in match.groups()) if match else ()


def path_in(link: str) -> tuple[str, ...]:
    """The root of the bus, the bridges and the device on the way of a sysfs path."""
    return tuple(
        part
        for part in link.split("/")
        if ADDRESS.fullmatch(part) or _BUS.fullmatch(part)
    )


def is_gpu(class_id: int, vendor: int | None) -> bool:
    """Whether TensorFlow may compute on it.

    NVIDIA's are display or 3D controllers. AMD's for computing are no VGA controllers;
    those, and those of others, draw the screens of servers.
    """
    if vendor == _NVIDIA:
        return class_id >> 8 == _DISPLAY
    if vendor == _AMD:
        return class_id >> 8 in (_DISPLAY, _ACCELERATOR) and class_id != _VGA
    return False


def is_bridge(class_id: int) -> bool:
    """Whether it only leads to others."""
    return class_id >> 8 == _BRIDGE


def is_shown(class_id: int) -> bool:
    """Whether hwloc shows such a device."""
    return class_id >> 8 in _SHOWN or class_id in _SHOWN_CLASSES
