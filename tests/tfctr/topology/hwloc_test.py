"""Machines of hwloc's collection: they read as `lstopo` reads them."""

import os
import pathlib
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from tfctr.topology import Machine, render

GOLDENS = pathlib.Path(__file__).parent / "goldens"
# Debian's reads no newer one.
NEWEST_XML = 2


@pytest.fixture(scope="module")
def lstopo(request):
    """What `lstopo` reads, as the root of its XML."""
    program = shutil.which("lstopo-no-graphics")
    if program is None:
        # Without the data sets too, this is no place to test it, and is skipped.
        request.getfixturevalue("data_dir")
        pytest.fail(
            "there is no lstopo-no-graphics: tools/install_hwloc.sh installs it"
        )

    def run(*options, **env):
        process = subprocess.run(
            [program, "--of", "xml", *options],
            env={**os.environ, **env},
            capture_output=True,
            timeout=60,
        )
        if process.returncode != 0:
            pytest.fail(f"lstopo reads it not: {process.stderr.decode()}")
        return ElementTree.fromstring(process.stdout)

    return run


def numbers(cpuset):
    """The numbers in a set of hwloc, such as `0x1,,0xff`: 32 bits a word."""
    words = reversed(cpuset.split(","))
    return [
        32 * index + bit
        for index, word in enumerate(words)
        for bit in range(32)
        if int(word or "0", 16) >> bit & 1
    ]


def of_type(root, name):
    return [item for item in root.iter("object") if item.get("type") == name]


def cpus_of(root, name):
    return sorted(numbers(item.get("cpuset")) for item in of_type(root, name))


def latencies(root):
    """All matrices between NUMA nodes. Only the firmware's begins with 10."""
    found = []
    for matrix in root.findall("distances2"):
        if matrix.get("type") == "NUMANode" and int(matrix.get("kind")) & 4:
            values = " ".join(part.text for part in matrix.findall("u64values"))
            found.append([int(value) for value in values.split()])
    return found


def localities(root):
    """Where each PCI device is attached: its CPUs and its NUMA nodes."""
    found = {}

    def visit(item, around):
        if item.get("cpuset") is not None:
            around = item
        if item.get("type") == "PCIDev":
            sets = (numbers(around.get(name)) for name in ("cpuset", "nodeset"))
            found[item.get("pci_busid")] = tuple(sets)
        for child in item.findall("object"):
            visit(child, around)

    visit(root.find("object"), None)
    return found


def interfaces(root, *kinds):
    return {
        item.get("name")
        for item in of_type(root, "OSDev")
        if item.get("osdev_type") in kinds
    }


def assert_equal(machine, oracle):
    assert list(machine.cpus) == sorted(sum(cpus_of(oracle, "PU"), []))
    assert sorted(list(x.cpus) for x in machine.packages) == cpus_of(oracle, "Package")
    assert sorted(list(core.cpus) for core in machine.cores) == cpus_of(oracle, "Core")
    nodes = {
        int(node.get("os_index")): (
            numbers(node.get("cpuset")),
            int(node.get("local_memory", 0)),
        )
        for node in of_type(oracle, "NUMANode")
    }
    assert nodes == {x.id: (list(x.cpus), x.memory_bytes) for x in machine.numa_nodes}
    if len(nodes) > 1 and latencies(oracle):
        distances = [value for node in machine.numa_nodes for value in node.distances]
        assert distances in latencies(oracle)
    homes = [cpu for x in machine.numa_nodes if not x.memory_only for cpu in x.cpus]
    assert len(homes) == len(set(homes))
    known = localities(oracle)
    for device in (*machine.gpus, *machine.nics, *machine.nvme):
        if device.pci_address in known:
            cpus, near = known[device.pci_address]
            assert list(device.cpus) == cpus, device
            if len(near) == 1:
                assert device.numa_node == near[0], device
            else:
                assert device.numa_node in (None, *near), device
            assert device.pci_path[-1] == device.pci_address
    names = {name for nic in machine.nics for name in (nic.name, *nic.rdma)}
    assert names == interfaces(oracle, "2", "3")
    assert {x.name for x in machine.nvme} == {
        name for name in interfaces(oracle, "0") if name.startswith("nvme")
    }


def test_archives_of_sysfs_read_as_lstopo_reads_them(roots, lstopo, subtests):
    assert roots
    for name, root in roots.items():
        with subtests.test(name):
            oracle = lstopo(HWLOC_FSROOT=str(root), HWLOC_COMPONENTS="linux,stop")
            machine = Machine.from_sysfs(root)
            assert_equal(machine, oracle)
            assert Machine.from_json(machine.to_json()) == machine


def test_files_of_lstopo_read_as_lstopo_reads_them(collection, lstopo, subtests):
    compared = []
    for path in sorted(collection.glob("*.xml")):
        version = ElementTree.parse(path).getroot().get("version", "1")
        if int(version[0]) > NEWEST_XML:
            continue
        compared.append(path)
        with subtests.test(path.name):
            oracle = lstopo(HWLOC_XMLFILE=str(path))
            machine = Machine.from_hwloc_xml(path)
            assert_equal(machine, oracle)
            assert Machine.from_json(machine.to_json()) == machine
    assert compared


def test_both_sources_tell_the_same_of_a_machine(roots, lstopo, subtests, tmp_path):
    def essence(machine):
        devices = (*machine.nics, *machine.nvme)
        return {
            "packages": [(x.id, x.cpus, x.model) for x in machine.packages],
            "cores": [(x.id, x.package, x.numa_node) for x in machine.cores],
            "nodes": [(x.id, x.cpus, x.memory_only) for x in machine.numa_nodes],
            "devices": [(x.pci_address, x.numa_node, x.cpus) for x in devices],
        }

    for name, root in roots.items():
        with subtests.test(name):
            oracle = lstopo(HWLOC_FSROOT=str(root), HWLOC_COMPONENTS="linux,stop")
            file = tmp_path / "machine.xml"
            ElementTree.ElementTree(oracle).write(file)
            written = Machine.from_hwloc_xml(file)
            assert essence(Machine.from_sysfs(root)) == essence(written)


def test_this_machine_reads_as_lstopo_reads_it(lstopo):
    machine = Machine.read()
    oracle = lstopo("--restrict", "binding")
    assert_equal(machine, oracle)


def test_a_file_of_hwloc_3_reads_as_ever(collection):
    machine = Machine.from_hwloc_xml(collection / "nvidiaDGX2.xml")
    assert render(machine) + "\n" == (GOLDENS / "nvidia_dgx2.txt").read_text()
    # Counted in the file.
    assert [node.cpus for node in machine.numa_nodes] == [(0, 1), (24, 25)]
    assert [gpu.numa_node for gpu in machine.gpus] == [0] * 8 + [1] * 8
    switches = {peer.id for gpu in machine.gpus for peer in gpu.nvlink_peers}
    assert len(switches) == 12
    assert machine.gpus[0].pci_path[:2] == ("pci0000:2b", "0000:2b:00.0")
