"""Reads a machine from the sysfs and proc of Linux, under any root directory.

The rules are those of hwloc 2.9 (topology-linux.c), whose reading the tests compare.
"""

import os
import re
from dataclasses import replace

from tfctr.topology import cgroup, cpu_mask, sysfs_devices
from tfctr.topology.cpu_mask import Nesting, to_cpus
from tfctr.topology.reading import Node, Part, Reading
from tfctr.topology.root import Root

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"
_CACHE_KINDS = {"Data": "data", "Instruction": "instruction"}
_MAX_CACHES = 10
# AMD's Bulldozer and Jaguar: what Linux calls the threads of a core are cores.
_AMD_COMPUTE_UNITS = ("21", "22")


def read(path: str | os.PathLike[str]) -> Reading:
    """What the files under a root directory tell.

    Raises:
        ValueError: If the directory cannot be read or holds no processors.
    """
    root = Root(path)
    _check(root)
    online, complete = _cpus(root)
    limits = cgroup.read(root)
    reading = Reading(
        threads=online,
        memory_bytes=root.total_memory("proc/meminfo"),
        allowed_cpus=limits.cpus,
        allowed_nodes=limits.nodes,
        memory_limit_bytes=limits.memory_bytes,
        cpu_quota=limits.cpu_quota,
    )
    nesting = Nesting()
    _read_processors(root, reading, nesting)
    _read_nodes(root, reading, nesting)
    devices = sysfs_devices.add(root, reading, nesting, complete)
    higher = {part.cpus for part in (*reading.packages, *reading.caches)}
    reading.packages = [
        _holding(part, reading.nodes, devices, set()) for part in reading.packages
    ]
    reading.cores = [
        _holding(part, reading.nodes, devices, higher) for part in reading.cores
    ]
    return reading


def _check(root: Root) -> None:
    try:
        os.listdir(root.path)
    except OSError as error:
        raise ValueError(
            "The root of sysfs must be a directory that can be read, with `sys/` and "
            f"`proc/` in it. Received: '{root.path}' ({error.strerror}). Give `/` for "
            "this machine, or the directory into which an archive was unpacked."
        ) from error
    if not any(re.fullmatch(r"cpu\d+", name) for name in root.names(_CPU)):
        raise ValueError(
            f"The root of sysfs must hold `{_CPU}/cpu0` or other processors. Received: "
            f"'{root.path}', which holds {root.names('.')[:8]}. Give the directory in "
            "which `sys/` lies."
        )


def _cpus(root: Root) -> tuple[int, int]:
    """The CPUs that are online and described, and all that exist."""
    online = root.cpu_list(f"{_CPU}/online")
    known = complete = 0
    for name in root.names(_CPU):
        if not re.fullmatch(r"cpu\d+", name):
            continue
        cpu = int(name[3:])
        complete |= 1 << cpu
        if online is None:
            is_online = root.integer(f"{_CPU}/{name}/online") != 0
        else:
            is_online = bool(online >> cpu & 1)
        known |= is_online << cpu
    described = sum(
        1 << cpu for cpu in to_cpus(known) if root.exists(f"{_CPU}/cpu{cpu}/topology")
    )
    # Where not even the first is described, there are still CPUs to run on.
    return described if described & known & -known else known, complete


def _read_processors(root: Root, reading: Reading, nesting: Nesting) -> None:
    cpuinfo = _cpuinfo(root)
    own_cores = _threads_are_cores(root, reading.threads, cpuinfo)
    seen: set[tuple[str, int, int, str]] = set()

    def add(parts: list[Part], part: Part, level: str) -> None:
        key = (level, part.cpus, part.level, part.kind)
        if key not in seen and nesting.add(part.cpus):
            seen.add(key)
            parts.append(part)

    for cpu in to_cpus(reading.threads):
        folder = f"{_CPU}/cpu{cpu}/topology"
        core = _mask(root, reading, f"{folder}/core_cpus", f"{folder}/thread_siblings")
        is_first = core is None or cpu_mask.first(core) == cpu
        if core is not None and (is_first or own_cores):
            core_id = _id(root, f"{folder}/core_id")
            cpus = 1 << cpu if own_cores else core
            add(reading.cores, Part(cpus, core_id), "core")
        package = _mask(
            root, reading, f"{folder}/package_cpus", f"{folder}/core_siblings"
        )
        if is_first and package is not None and cpu_mask.first(package) == cpu:
            package_id = _id(root, f"{folder}/physical_package_id")
            model = _model(cpuinfo.get(cpu, {}))
            add(reading.packages, Part(package, package_id, model), "package")
        nesting.add(1 << cpu)
        for index in range(_MAX_CACHES):
            cache = _cache(root, reading, cpu, index, core)
            if cache is not None:
                add(reading.caches, cache, "cache")


def _mask(root: Root, reading: Reading, *paths: str) -> int | None:
    """The first mask that is there: new kernels have new names for some."""
    for path in paths:
        mask = root.mask(path)
        if mask is not None:
            return mask & reading.threads
    return None


def _id(root: Root, path: str) -> int | None:
    number = root.integer(path)
    return None if number is None or number < 0 else number


def _cache(
    root: Root, reading: Reading, cpu: int, index: int, core: int | None
) -> Part | None:
    """A cache, if this CPU is the first of those that share it."""
    folder = f"{_CPU}/cpu{cpu}/cache/index{index}"
    cpus = _mask(root, reading, f"{folder}/shared_cpu_map")
    if cpus == 0:
        # Itanium leaves the map of some empty.
        cpus = core
    level = root.integer(f"{folder}/level")
    if not cpus or cpu_mask.first(cpus) != cpu or level is None:
        return None
    size = (root.text(f"{folder}/size") or "").removesuffix("K")
    return Part(
        cpus,
        level=level,
        kind=_CACHE_KINDS.get(root.text(f"{folder}/type") or "", "unified"),
        size_bytes=int(size) << 10 if size.isdigit() else 0,
    )


def _cpuinfo(root: Root) -> dict[int, dict[str, str]]:
    """The fields of each processor in /proc/cpuinfo."""
    found: dict[int, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in (root.text("proc/cpuinfo") or "").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "processor" and value.isdigit():
            fields = found.setdefault(int(value), {})
        elif name:
            fields[name] = value
    return found


def _model(fields: dict[str, str]) -> str:
    # POWER has another name for it.
    return fields.get("model name") or fields.get("cpu", "")


def _threads_are_cores(
    root: Root, threads: int, cpuinfo: dict[int, dict[str, str]]
) -> bool:
    """Whether the siblings that Linux shows are cores of their own."""
    fields = next(iter(cpuinfo.values()), {})
    if fields.get("vendor_id") != "AuthenticAMD":
        return False
    if fields.get("cpu family") not in _AMD_COMPUTE_UNITS:
        return False
    for cpu in to_cpus(threads):
        siblings = root.mask(f"{_CPU}/cpu{cpu}/topology/core_cpus")
        if siblings is None:
            siblings = root.mask(f"{_CPU}/cpu{cpu}/topology/thread_siblings")
        others = to_cpus((siblings or 0) & threads & ~(1 << cpu))
        if others:
            ids = (
                root.integer(f"{_CPU}/cpu{each}/topology/core_id")
                for each in (cpu, others[0])
            )
            return len(set(ids)) == 2
    return False


def _read_nodes(root: Root, reading: Reading, nesting: Nesting) -> None:
    ids = _node_ids(root)
    of_gpus = _gpu_nodes(root)
    masks: dict[int, int] = {}
    covered = 0
    for id_ in ids:
        cpus = root.mask(f"{_NODE}/node{id_}/cpumap")
        # The memory of a GPU is not for us, and of two nodes with one CPU, which only
        # broken firmware shows, the first is right.
        if cpus is None or cpus & covered:
            continue
        covered |= cpus
        if id_ not in of_gpus:
            masks[id_] = cpus
    distances = _distances(root, ids)
    own = {id_ for id_ in masks if masks[id_]}
    for id_ in sorted(masks, key=lambda id_: id_ not in own):
        near = _initiators(root, id_) - {id_}
        for other in near & masks.keys():
            masks[id_] |= masks[other]
        if not masks[id_] and distances:
            masks[id_] = _nearest(id_, ids, masks, distances)
        if cpus := masks[id_] & reading.threads:
            cpus = nesting.place(cpus, reading.threads)
        memory = root.total_memory(f"{_NODE}/node{id_}/meminfo")
        reading.nodes.append(Node(id_, cpus, memory, id_ in own))
    if distances:
        reading.distance_ids, reading.distances = ids, distances


def _node_ids(root: Root) -> list[int]:
    online = root.cpu_list(f"{_NODE}/online")
    if online:
        return list(to_cpus(online))
    names = root.names(_NODE)
    return sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d+", name))


def _gpu_nodes(root: Root) -> set[int]:
    """The NUMA nodes that are memory of a GPU, which NVLink makes visible on POWER."""
    folder = "proc/driver/nvidia/gpus"
    texts = (root.text(f"{folder}/{name}/numa_status") for name in root.names(folder))
    found = (re.search(r"Node:\s*(\d+)", text or "") for text in texts)
    return {int(match[1]) for match in found if match}


def _distances(root: Root, ids: list[int]) -> list[list[int]]:
    """The matrix over all nodes, if it is whole. Linux leaves out missing ids."""
    rows = []
    for id_ in ids:
        words = (root.text(f"{_NODE}/node{id_}/distance") or "").split()[: len(ids)]
        if len(words) < len(ids) or not all(word.isdigit() for word in words):
            return []
        rows.append([int(word) for word in words])
    return rows if len(ids) > 1 else []


def _initiators(root: Root, id_: int) -> set[int]:
    """The nodes from which memory is reached fastest.

    Of those in access0 some are devices; access1, of newer kernels, lists CPUs only.
    """
    for access in ("access1", "access0"):
        folder = f"{_NODE}/node{id_}/{access}/initiators"
        if root.exists(folder):
            names = root.names(folder)
            return {int(name[4:]) for name in names if re.fullmatch(r"node\d+", name)}
    return set()


def _nearest(
    id_: int, ids: list[int], masks: dict[int, int], distances: list[list[int]]
) -> int:
    """The CPUs of the nodes nearest to one without CPUs, if some are nearer."""
    row = dict(zip(ids, distances[ids.index(id_)], strict=True))
    others = [other for other in masks if other != id_]
    least = min((row[other] for other in others), default=0)
    nearest = [other for other in others if row[other] == least]
    if least <= row[id_] or len(nearest) == len(ids) - 1:
        return 0
    cpus = 0
    for other in nearest:
        cpus |= masks[other]
    return cpus


def _holding(
    part: Part, nodes: list[Node], devices: set[int], higher: set[int]
) -> Part:
    """The part with the nodes and devices in it, which keep it when its CPUs go.

    Of several parts with the same CPUs, these are in the highest.
    """

    def is_in(cpus: int) -> bool:
        is_inside = cpus > 0 and cpus & part.cpus == cpus
        return is_inside and (cpus != part.cpus or cpus not in higher)

    return replace(
        part,
        nodes=sum(1 << node.id for node in nodes if is_in(node.cpus)),
        has_devices=any(is_in(cpus) for cpus in devices),
    )
