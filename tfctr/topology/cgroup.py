"""What the cgroup and the affinity of a process allow: cgroup 1, 2 and old cpusets."""

import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tfctr.topology.cpu_mask import EVERYTHING
from tfctr.topology.root import Root

# Where cgroup 1 has no limit, it shows the largest number of pages.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True)
class Limits:
    """Masks of the CPUs and NUMA nodes, bytes, and how many CPUs' time."""

    cpus: int = EVERYTHING
    nodes: int = EVERYTHING
    memory_bytes: int | None = None
    cpu_quota: float | None = None


@dataclass(frozen=True)
class _Mount:
    """Where a hierarchy of cgroups is mounted, and how its files are named."""

    directory: str
    kind: str
    options: tuple[str, ...]

    def has(self, controller: str, root: Root) -> bool:
        if self.kind == "cgroup2":
            listed = root.text(f"{self.directory}/cgroup.controllers")
            return controller in (listed or "").split()
        return self.kind == controller or controller in self.options


def read(root: Root) -> Limits:
    """The limits of the process that reads, as files under `root` tell them."""
    mounts = list(_mounts(root))
    cpus, nodes = _cpuset(root, mounts)
    status = root.text("proc/self/status") or ""
    # Holds where the files of the cgroup are out of sight, and has the affinity in it.
    # What is no mask says nothing, as all that `Root` cannot read.
    masks = re.findall(r"^(Cpus|Mems)_allowed:\s*([\da-fA-F,]+)$", status, re.M)
    for name, mask in masks:
        allowed = int(mask.replace(",", ""), 16)
        if name == "Cpus":
            cpus &= allowed
        else:
            nodes &= allowed
    return Limits(cpus, nodes, _memory(root, mounts), _quota(root, mounts))


def _mounts(root: Root) -> Iterator[_Mount]:
    for line in (root.text("proc/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] in ("cgroup", "cgroup2", "cpuset"):
            # A space in a path is written as \040.
            directory = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), fields[1])
            yield _Mount(directory, fields[2], tuple(fields[3].split(",")))


def _directories(root: Root, mount: _Mount, controller: str) -> list[str]:
    """The directory of our cgroup, then those around it up to the mount.

    A container may see the mount of its own cgroup only, and its name as the host has
    it: that directory is missing then, and the mount is the one.
    """
    name = pathlib.PurePosixPath(_name(root, mount, controller))
    if ".." in name.parts:
        name = pathlib.PurePosixPath("/")
    return [
        f"{mount.directory}/{str(path).lstrip('/')}".rstrip("/")
        for path in (name, *name.parents)
    ]


def _name(root: Root, mount: _Mount, controller: str) -> str:
    if controller == "cpuset" and (name := root.text("proc/self/cpuset")):
        return name
    for line in (root.text("proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        wanted = "" if mount.kind == "cgroup2" else controller
        if wanted in controllers.split(","):
            return name
    return "/"


def _cpuset(root: Root, mounts: list[_Mount]) -> tuple[int, int]:
    mount = next((mount for mount in mounts if mount.has("cpuset", root)), None)
    if mount is None:
        return EVERYTHING, EVERYTHING
    if mount.kind == "cgroup2":
        # That of cgroup 2 has what those around it allow in it.
        files = ("cpuset.cpus.effective", "cpuset.mems.effective")
    elif mount.kind == "cpuset" or "noprefix" in mount.options:
        files = ("cpus", "mems")
    else:
        files = ("cpuset.cpus", "cpuset.mems")
    masks = []
    for file in files:
        found = (
            root.cpu_list(f"{directory}/{file}")
            for directory in _directories(root, mount, "cpuset")
        )
        # No process can be in an empty set: it only says that nothing was set.
        masks.append(next((mask for mask in found if mask), EVERYTHING))
    return masks[0], masks[1]


def _memory(root: Root, mounts: list[_Mount]) -> int | None:
    limits = []
    for mount in mounts:
        if mount.kind == "cgroup2" or "memory" in mount.options:
            file = "memory.max" if mount.kind == "cgroup2" else "memory.limit_in_bytes"
            for directory in _directories(root, mount, "memory"):
                limit = root.integer(f"{directory}/{file}")
                if limit is not None and limit < _NO_LIMIT_BYTES:
                    limits.append(limit)
    return min(limits, default=None)


def _quota(root: Root, mounts: list[_Mount]) -> float | None:
    quotas = []
    for mount in mounts:
        for directory in _directories(root, mount, "cpu"):
            if mount.kind == "cgroup2":
                numbers = (root.text(f"{directory}/cpu.max") or "").split()
            elif "cpu" in mount.options:
                files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                numbers = [root.text(f"{directory}/{file}") or "" for file in files]
            else:
                continue
            # `max` and -1 are no limit.
            if len(numbers) == 2 and all(number.isdigit() for number in numbers):
                quotas.append(int(numbers[0]) / max(int(numbers[1]), 1))
    return min(quotas, default=None)
