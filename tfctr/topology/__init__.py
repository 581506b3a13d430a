"""What the machine is, and where each rank goes."""

from tfctr.topology.machine import (
    Cache,
    Core,
    Gpu,
    Machine,
    Nic,
    NumaNode,
    NvlinkPeer,
    Nvme,
    Package,
)
from tfctr.topology.tree import render

__all__ = [
    "Cache",
    "Core",
    "Gpu",
    "Machine",
    "Nic",
    "NumaNode",
    "Nvme",
    "NvlinkPeer",
    "Package",
    "render",
]
