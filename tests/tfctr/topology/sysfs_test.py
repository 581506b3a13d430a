"""Machines as Linux shows them: what is offline, forbidden, missing or odd."""

import os

import pytest

from helpers.machine_files import CPU, NODE, cpu_files, cpus_of, two_packages
from tfctr.topology import Machine


def test_a_whole_machine(write_root):
    machine = Machine.from_sysfs(write_root(two_packages()))
    assert machine.cpus == tuple(range(8))
    assert cpus_of(machine.packages) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert cpus_of(machine.cores) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [(core.package, core.numa_node) for core in machine.cores] == [
        (0, 0),
        (0, 0),
        (1, 1),
        (1, 1),
    ]
    assert cpus_of(machine.numa_nodes) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [node.memory_bytes for node in machine.numa_nodes] == [2**20, 2**20]
    assert [node.distances for node in machine.numa_nodes] == [(10, 21), (21, 10)]
    assert [cache.size_bytes for cache in machine.caches] == [32768] * 4
    assert machine.memory_limit_bytes is None
    assert machine.cpu_quota is None


def test_offline_cpus_are_left_out(write_root):
    files = two_packages() | {f"{CPU}/online": "0-2,5-7"}
    machine = Machine.from_sysfs(write_root(files))
    assert machine.cpus == (0, 1, 2, 5, 6, 7)
    assert cpus_of(machine.cores) == [[0], [1, 5], [2, 6], [7]]
    assert cpus_of(machine.numa_nodes) == [[0, 1, 5], [2, 6, 7]]


def test_each_cpu_may_say_whether_it_is_online(write_root):
    files = two_packages()
    del files[f"{CPU}/online"]
    files[f"{CPU}/cpu3/online"] = "0"
    files[f"{CPU}/cpu4/online"] = "1"
    assert Machine.from_sysfs(write_root(files)).cpus == (0, 1, 2, 4, 5, 6, 7)


def test_a_cpu_without_topology_is_left_out(write_root):
    files = two_packages()
    for name in list(files):
        if name.startswith(f"{CPU}/cpu7/topology"):
            del files[name]
    files[f"{CPU}/cpu7/uevent"] = ""
    assert Machine.from_sysfs(write_root(files)).cpus == tuple(range(7))


def test_without_any_topology_there_are_cpus_still(write_root):
    machine = Machine.from_sysfs(
        write_root({f"{CPU}/cpu0": None, f"{CPU}/cpu1": None, f"{CPU}/online": "0-1"})
    )
    assert machine.cpus == (0, 1)
    assert machine.packages == machine.cores == ()
    assert cpus_of(machine.numa_nodes) == [[0, 1]]


def test_without_numa_there_is_one_node(write_root):
    files = {
        name: text for name, text in two_packages().items() if NODE not in name
    } | {"proc/meminfo": "MemTotal:       4096 kB\nMemFree: 5 kB"}
    (node,) = Machine.from_sysfs(write_root(files)).numa_nodes
    assert (node.id, node.memory_bytes, node.distances) == (0, 4 << 20, (10,))
    assert node.cpus == tuple(range(8))


def test_old_kernels_have_other_names(write_root):
    new = {"core_cpus": "thread_siblings", "package_cpus": "core_siblings"}
    files = {}
    for name, text in two_packages().items():
        folder, _, last = name.rpartition("/")
        files[f"{folder}/{new.get(last, last)}"] = text
    machine = Machine.from_sysfs(write_root(files))
    assert cpus_of(machine.packages) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert cpus_of(machine.cores) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_package_may_have_no_number(write_root):
    files = {f"{CPU}/online": "0", **cpu_files(0, [0], [0], package_id=-1)}
    (package,) = Machine.from_sysfs(write_root(files)).packages
    assert package.id is None


def test_hundreds_of_cpus(write_root):
    everyone = ",".join(["ffffffff"] * 16)
    files = {f"{CPU}/online": "0-511"}
    for cpu in range(512):
        words = ["00000000"] * 16
        words[15 - cpu // 32] = f"{1 << cpu % 32:08x}"
        files[f"{CPU}/cpu{cpu}/topology/core_cpus"] = ",".join(words)
        files[f"{CPU}/cpu{cpu}/topology/package_cpus"] = everyone
    machine = Machine.from_sysfs(write_root(files))
    assert machine.cpus == tuple(range(512))
    assert len(machine.cores) == 512
    assert len(machine.packages) == 1


def test_threads_of_bulldozer_are_cores(write_root):
    files = two_packages()
    for cpu in range(8):
        files[f"{CPU}/cpu{cpu}/topology/core_id"] = str(cpu)
    files["proc/cpuinfo"] = (
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 21\n"
        "model name\t: AMD Opteron\n"
    )
    machine = Machine.from_sysfs(write_root(files))
    assert sorted(cpus_of(machine.cores)) == [[cpu] for cpu in range(8)]
    assert machine.packages[0].model == "AMD Opteron"


def test_node_numbers_may_be_sparse(write_root):
    files = {
        name.replace("/node1/", "/node33/"): text
        for name, text in two_packages().items()
    }
    machine = Machine.from_sysfs(write_root(files | {f"{NODE}/online": "0,33"}))
    assert [node.id for node in machine.numa_nodes] == [0, 33]
    assert machine.numa_nodes[1].distances == (21, 10)
    assert {core.numa_node for core in machine.cores} == {0, 33}


def test_memory_without_cpus_has_those_of_the_nearest_node(write_root):
    files = two_packages() | {
        f"{NODE}/online": "0-2",
        f"{NODE}/node0/distance": "10 21 28",
        f"{NODE}/node1/distance": "21 10 17",
        f"{NODE}/node2/distance": "28 17 10",
        f"{NODE}/node2/cpumap": "00000000",
        f"{NODE}/node2/meminfo": "Node 2 MemTotal:  2048 kB",
    }
    machine = Machine.from_sysfs(write_root(files))
    assert [node.memory_only for node in machine.numa_nodes] == [False, False, True]
    assert machine.numa_nodes[2].cpus == (2, 3, 6, 7)
    assert machine.numa_nodes[2].memory_bytes == 2 << 20
    assert {core.numa_node for core in machine.cores} == {0, 1}


def test_memory_without_cpus_is_near_its_initiators(write_root):
    files = two_packages() | {
        f"{NODE}/online": "0-2",
        f"{NODE}/node2/cpumap": "00000000",
        f"{NODE}/node2/access0/initiators/node1": None,
        f"{NODE}/node2/access1/initiators/node0": None,
    }
    assert Machine.from_sysfs(write_root(files)).numa_nodes[2].cpus == (0, 1, 4, 5)


def test_memory_without_cpus_may_be_far_from_all(write_root):
    files = two_packages() | {f"{NODE}/online": "0-2", f"{NODE}/node2/cpumap": "0"}
    node = Machine.from_sysfs(write_root(files)).numa_nodes[2]
    assert (node.cpus, node.memory_only, node.distances) == ((), True, ())


def test_the_memory_of_a_gpu_is_no_node(write_root):
    files = two_packages() | {
        "proc/driver/nvidia/gpus/0004:04:00.0/numa_status": "Node:  1\nStatus: online"
    }
    assert [x.id for x in Machine.from_sysfs(write_root(files)).numa_nodes] == [0]


def test_of_nodes_with_the_same_cpus_the_first_is_right(write_root):
    files = two_packages() | {f"{NODE}/node1/cpumap": "ff"}
    assert [x.id for x in Machine.from_sysfs(write_root(files)).numa_nodes] == [0]


def test_a_root_that_is_missing_is_refused(tmp_path):
    message = r"can be read, with `sys/` and .*gone' \(No such file or .*Give `/` for"
    with pytest.raises(ValueError, match=message):
        Machine.from_sysfs(tmp_path / "gone")


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file' \(Not a directory\)"):
        Machine.from_sysfs(tmp_path / "file")


def test_a_root_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    def forbidden(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", forbidden)
    with pytest.raises(ValueError, match=r"' \(Permission denied\)\. Give"):
        Machine.from_sysfs(tmp_path)


def test_a_root_without_processors_is_refused(write_root):
    root = write_root({"fsroot/proc/stat": "", f"{CPU}/cpuidle": None})
    message = r"cpu0` or other processors\. Received: .*\['fsroot', 'sys'\]\. Give"
    with pytest.raises(ValueError, match=message):
        Machine.from_sysfs(root)
