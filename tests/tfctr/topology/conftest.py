"""Machines written by hand, and those of hwloc's collection."""

import re
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfctr.topology import Core, Gpu, Machine, NumaNode, NvlinkPeer, memory_policy

# Most of the files tell nothing here, and writing them takes seconds.
SILENT = re.compile(
    r"/(power|memory(\d+|_\w+)|usb\w*|statistics|queues|pcie\w*|cpuidle|host\d+|ata\d+"
    r"|thermal_throttle|microcode|hugepages\w*|ports|sched_\w+|tasks|cgroup\.procs"
    r"|physical_line_partition|crash_notes\w*|uevent|modalias|numastat|block/sd\w+"
    r"|block/(loop|ram|dm-)\d+)(/|$)"
)


@pytest.fixture
def write_root(tmp_path):
    """Writes files below a root directory, from their texts, and returns it.

    A text that begins with `->` makes a link; `None` makes a directory.
    """

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.mkdir(exist_ok=True)
            elif text.startswith("->"):
                path.symlink_to(text.removeprefix("->"))
            else:
                path.write_text(f"{text}\n")
        return tmp_path

    return write


@pytest.fixture(scope="session")
def memory_can_be_bound():
    """Whether this system lets a process choose the nodes of its memory."""

    def bind():
        try:
            # Holds for this thread alone, which ends.
            memory_policy.set_policy("bind", [0])
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(bind).result()


@pytest.fixture(scope="session")
def collection(data_dir):
    folder = data_dir / "topologies"
    if not folder.is_dir():
        # Skipped only where there are no data sets at all.
        pytest.fail(f"there is no folder {folder} with machines of hwloc's collection")
    return folder


def unpack(archive, folder):
    """Texts and links only: with modes and times it takes four times as long."""
    with tarfile.open(archive) as members:
        for member in members:
            path = folder / member.name
            if SILENT.search(member.name):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.isdir():
                path.mkdir(exist_ok=True)
            elif member.issym():
                path.symlink_to(member.linkname)
            elif member.isreg():
                path.write_bytes(members.extractfile(member).read())


@pytest.fixture(scope="session")
def roots(collection, tmp_path_factory):
    """The root directory in each of the archives, by the name of the archive."""
    found = {}
    for path in sorted(collection.glob("*.tar.bz2")):
        folder = tmp_path_factory.mktemp("machine")
        unpack(path, folder)
        for sys_folder in (*folder.glob("*/sys"), *folder.glob("*/fsroot/sys")):
            found[path.name] = sys_folder.parent
    return found


@pytest.fixture(scope="session")
def machines(collection, roots):
    """All machines of the collection, by the names of their files."""
    found = {name: Machine.from_sysfs(root) for name, root in roots.items()}
    for path in sorted(collection.glob("*.xml")):
        found[path.name] = Machine.from_hwloc_xml(path)
    return found


@pytest.fixture(scope="session")
def two_sockets():
    """`two_sockets(num_cores, gpus)` makes a machine of two nodes.

    Each core has two hardware threads: with 4 cores, node 0 has CPUs 0, 1, 4 and 5.
    """

    def make(num_cores=8, gpus=(), **fields):
        cores = tuple(
            Core(core, None, core * 2 // num_cores, (core, core + num_cores))
            for core in range(num_cores)
        )
        nodes = tuple(
            NumaNode(
                node,
                tuple(sorted(x for c in cores if c.numa_node == node for x in c.cpus)),
                2**34,
                (10, 20) if node == 0 else (20, 10),
            )
            for node in (0, 1)
        )
        return Machine(
            **{
                "cpus": tuple(range(2 * num_cores)),
                "packages": (),
                "numa_nodes": nodes,
                "cores": cores,
                "gpus": gpus,
                **fields,
            }
        )

    return make


@pytest.fixture(scope="session")
def cube_mesh(two_sockets):
    """Eight GPUs as in a DGX-1: two fully linked quads, and i linked to i + 4.

    `cube_mesh(extra)` doubles the links between the pairs in `extra`.
    """

    def make(extra=()):
        def speed(one, other):
            linked = one // 4 == other // 4 or one % 4 == other % 4
            double = (one, other) in extra or (other, one) in extra
            return 20 * 10**9 * (linked + double)

        def address(gpu):
            return f"0000:{gpu + 5:02x}:00.0"

        return two_sockets(
            16,
            tuple(
                Gpu(
                    gpu,
                    address(gpu),
                    (
                        f"pci0000:{gpu // 4:02x}",
                        f"0000:{gpu // 2 + 1:02x}:00.0",
                        address(gpu),
                    ),
                    numa_node=gpu // 4,
                    nvlink_peers=tuple(
                        NvlinkPeer("gpu", address(peer), speed(gpu, peer))
                        for peer in range(8)
                        if peer != gpu and speed(gpu, peer)
                    ),
                )
                for gpu in range(8)
            ),
        )

    return make
