"""What a machine is made of."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from tfctr.topology import consistency
from tfctr.topology.plain import from_plain


@dataclass(frozen=True)
class Package:
    """A processor in its socket.

    Attributes:
        id: Integer or `None`. The number that the firmware gives, if it gives one.
        cpus: Integers. The hardware threads of it that may be used.
        model: String. What the processor calls itself; empty where that is unknown.

    Example:

    >>> Package(id=0, cpus=(0, 1)).cpus
    (0, 1)
    """

    id: int | None
    cpus: tuple[int, ...]
    model: str = ""


@dataclass(frozen=True)
class NumaNode:
    """Memory, and the hardware threads that are nearest to it.

    Attributes:
        id: Integer. The number that Linux gives; numbers may be missing.
        cpus: Integers. The hardware threads near this memory that may be used.
        memory_bytes: Integer. 0 where it is unknown.
        distances: Integers. By how much farther memory is, for each node of
            `Machine.numa_nodes`: 10 is local, 20 twice as far. Empty where unknown.
        memory_only: Boolean. Whether no hardware thread is at home here: `cpus` is
            empty, or those CPUs are at home in another node that has them too, as
            beside high-bandwidth or persistent memory. The nodes with homes share no
            CPU.

    Example:

    >>> NumaNode(id=0, cpus=(0, 1), memory_bytes=2**30).memory_only
    False
    """

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int
    distances: tuple[int, ...] = ()
    memory_only: bool = False


@dataclass(frozen=True)
class Core:
    """A core with its hardware threads.

    Attributes:
        id: Integer or `None`. The number of the firmware; cores of two packages may
            share one.
        package: Integer or `None`. The place of its package in `Machine.packages`.
        numa_node: Integer or `None`. The id of the node where it is at home.
        cpus: Integers. The hardware threads of it that may be used.

    Example:

    >>> len(Core(id=0, package=0, numa_node=0, cpus=(0, 4)).cpus)
    2
    """

    id: int | None
    package: int | None
    numa_node: int | None
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Cache:
    """A cache and who shares it.

    Attributes:
        level: Integer. 1 is nearest to the core.
        kind: String. `"data"`, `"instruction"` or `"unified"`.
        size_bytes: Integer. 0 where it is unknown.
        cpus: Integers. The hardware threads that share it and may be used.

    Example:

    >>> Cache(level=3, kind="unified", size_bytes=32 * 2**20, cpus=(0, 1)).level
    3
    """

    level: int
    kind: str
    size_bytes: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class NvlinkPeer:
    """What is at the other end of the NVLinks of a GPU.

    Attributes:
        kind: String. `"gpu"`, `"switch"` (an NVSwitch) or `"package"` (a processor).
        id: String. The PCI address of the GPU or switch. For a package its id, or the
            PCI address of the bridge in it, where the driver gives that.
        bytes_per_second: Integer. In one direction, over all links to this peer.

    Example:

    >>> NvlinkPeer("gpu", "0000:0a:00.0", 50 * 10**9).kind
    'gpu'
    """

    kind: str
    id: str
    bytes_per_second: int


@dataclass(frozen=True)
class Gpu:
    """A GPU that TensorFlow can compute on.

    Attributes:
        id: Integer. Its place in the order of PCI addresses among all GPUs, also those
            that `CUDA_VISIBLE_DEVICES` hides: the number of nvidia-smi, and what that
            variable takes when `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`. TensorFlow counts
            anew those that it sees: `Placement.device` has its name.
        pci_address: String. Domain, bus, device and function, as Linux writes them.
        pci_path: Strings. The root of the bus, the bridges, and the device itself.
        numa_node: Integer or `None`. The nearest node, if one is nearer than the rest.
        cpus: Integers. The hardware threads next to the device that may be used.
        name: String. The model; empty where that is unknown.
        memory_bytes: Integer. 0 where it is unknown.
        nvlink_peers: `NvlinkPeer`s. Empty without NVLink, or where it is unknown.

    Example:

    >>> Gpu(id=0, pci_address="0000:0a:00.0", numa_node=1).numa_node
    1
    """

    id: int
    pci_address: str
    pci_path: tuple[str, ...] = ()
    numa_node: int | None = None
    cpus: tuple[int, ...] = ()
    name: str = ""
    memory_bytes: int = 0
    nvlink_peers: tuple[NvlinkPeer, ...] = ()


@dataclass(frozen=True)
class Nic:
    """A network interface that is hardware.

    Attributes:
        name: String. That of the interface, such as `eth0`, or of the RDMA device where
            that has no interface.
        rdma: Strings. The RDMA devices of the same hardware, such as `mlx5_0`.
        pci_address: String or `None`, for what is on no PCI bus.
        pci_path: Strings, as those of `Gpu`.
        numa_node: Integer or `None`. The nearest node, if one is nearer than the rest.
        cpus: Integers. The hardware threads next to the device that may be used.

    Example:

    >>> Nic("ib0", rdma=("mlx5_0",)).rdma
    ('mlx5_0',)
    """

    name: str
    rdma: tuple[str, ...] = ()
    pci_address: str | None = None
    pci_path: tuple[str, ...] = ()
    numa_node: int | None = None
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Nvme:
    """An SSD on the PCI bus.

    Attributes:
        name: String. That of the block device, such as `nvme0n1`.
        pci_address: String or `None`, as that of `Nic`.
        pci_path: Strings, as those of `Gpu`.
        numa_node: Integer or `None`. The nearest node, if one is nearer than the rest.
        cpus: Integers. The hardware threads next to the device that may be used.

    Example:

    >>> Nvme("nvme0n1", numa_node=0).name
    'nvme0n1'
    """

    name: str
    pci_address: str | None = None
    pci_path: tuple[str, ...] = ()
    numa_node: int | None = None
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Machine:
    """What a machine offers to this process: processors, memory and devices.

    CPUs that are offline, or that a cgroup or the affinity of the process forbids, are
    left out everywhere, and so are NUMA nodes that a cgroup forbids. What remains is
    counted as hwloc's `lstopo` counts it. A process that was pinned sees its own CPUs
    only: read the machine first.

    Attributes:
        cpus: Integers. All hardware threads that may be used.
        packages: `Package`s, by their first CPU. Empty where Linux does not tell them.
        numa_nodes: `NumaNode`s, by id. At least one.
        cores: `Core`s, by their first CPU. Empty where Linux does not tell them.
        caches: `Cache`s, the highest level first.
        gpus: `Gpu`s, by PCI address.
        nics: `Nic`s, by name.
        nvme: `Nvme`s, by name.
        memory_limit_bytes: Integer or `None`. What the cgroup allows; `None` is no
            limit.
        cpu_quota: Float or `None`. How many CPUs' time the cgroup allows; `None` is no
            limit.

    Example:

    >>> node = NumaNode(id=0, cpus=(0, 1), memory_bytes=2**30)
    >>> machine = Machine((0, 1), (), (node,), memory_limit_bytes=2**20)
    >>> machine.memory_bytes
    1048576
    >>> Machine.from_json(machine.to_json()) == machine
    True
    """

    cpus: tuple[int, ...]
    packages: tuple[Package, ...]
    numa_nodes: tuple[NumaNode, ...]
    cores: tuple[Core, ...] = ()
    caches: tuple[Cache, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    nvme: tuple[Nvme, ...] = ()
    memory_limit_bytes: int | None = None
    cpu_quota: float | None = None

    @classmethod
    def read(cls) -> Self:
        """This machine, as this process may use it.

        The GPUs are those that the NVIDIA driver shows, where there is one and
        `nvidia-ml-py` is installed, else those on the PCI bus.

        Raises:
            ValueError: If Linux does not show its processors.
        """
        from tfctr.topology import nvml, sysfs

        reading = sysfs.read("/")
        nvml.add_gpus(reading)
        return cls(**reading.parts())

    @classmethod
    def from_sysfs(cls, root: str | os.PathLike[str]) -> Self:
        """The machine whose `sys/` and `proc/` lie in a directory.

        Args:
            root: Path, such as that of an unpacked archive of `hwloc-gather-topology`.

        Raises:
            ValueError: If `root` cannot be read or shows no processors.
        """
        from tfctr.topology import sysfs

        return cls(**sysfs.read(root).parts())

    @classmethod
    def from_hwloc_xml(cls, path: str | os.PathLike[str]) -> Self:
        """The machine that a file describes which `lstopo` has written.

        Args:
            path: Path of an XML file of hwloc 1, 2 or 3.

        Raises:
            ValueError: If the file cannot be read or is no such XML, or its parts do
                not fit together.
        """
        from tfctr.topology import hwloc_xml

        machine = cls(**hwloc_xml.read(path).parts())
        machine._check(f"'{os.fspath(path)}' with ")
        return machine

    @property
    def memory_bytes(self) -> int:
        """The memory of all nodes, or what the cgroup allows if that is less."""
        total = sum(node.memory_bytes for node in self.numa_nodes)
        limit = self.memory_limit_bytes
        return total if limit is None else min(total, limit) if total else limit

    def to_dict(self) -> dict[str, Any]:
        """The fields as lists, dicts, strings and numbers, as JSON has them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The machine that `to_dict` has turned into plain values.

        Raises:
            ValueError: If the fields are not those of `to_dict`, or do not fit
                together.
        """
        try:
            machine: Self = from_plain(cls, plain)
        except TypeError as error:
            raise ValueError(
                "A machine must have the fields that `Machine.to_dict` gives. "
                f"Received: {error}. Write it anew with this version of tfctr."
            ) from error
        machine._check()
        return machine

    def _check(self, source: str = "") -> None:
        for problem in consistency.machine_problems(self):
            raise ValueError(
                f"The parts of a machine must fit together. Received: {source}"
                f"{problem}. Correct it, or write the machine anew."
            )

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The machine that `to_json` has written.

        Raises:
            ValueError: If the text is no JSON or has other fields.
        """
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise ValueError(
                "A machine must be the JSON that `Machine.to_json` gives. "
                f"Received: {text[:40]!r} ({error}). Write it anew."
            ) from error
        return cls.from_dict(plain)
