"""Machines as Linux shows them: what is offline, forbidden, missing or odd."""

import os

import pytest

from tfctr.topology import Machine

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def hexadecimal(cpus):
    return f"{sum(1 << cpu for cpu in cpus):08x}"


def cpu_files(cpu, core, package, package_id=0, core_id=0):
    folder = f"{CPU}/cpu{cpu}/topology"
    return {
        f"{folder}/core_cpus": hexadecimal(core),
        f"{folder}/core_id": str(core_id),
        f"{folder}/package_cpus": hexadecimal(package),
        f"{folder}/physical_package_id": str(package_id),
    }


def two_packages():
    """Two packages of two cores with two threads each, a NUMA node in each."""
    files = {f"{CPU}/online": "0-7", f"{NODE}/online": "0-1"}
    for cpu in range(8):
        package = cpu // 2 % 2
        files |= cpu_files(
            cpu,
            core=(cpu % 4, cpu % 4 + 4),
            package=[x for x in range(8) if x // 2 % 2 == package],
            package_id=package,
            core_id=cpu % 2,
        )
        files[f"{CPU}/cpu{cpu}/cache/index0/level"] = "1"
        files[f"{CPU}/cpu{cpu}/cache/index0/type"] = "Data"
        files[f"{CPU}/cpu{cpu}/cache/index0/size"] = "32K"
        files[f"{CPU}/cpu{cpu}/cache/index0/shared_cpu_map"] = hexadecimal(
            (cpu % 4, cpu % 4 + 4)
        )
    for node, cpus in enumerate(((0, 1, 4, 5), (2, 3, 6, 7))):
        files[f"{NODE}/node{node}/cpumap"] = hexadecimal(cpus)
        files[f"{NODE}/node{node}/meminfo"] = f"Node {node} MemTotal:  1024 kB"
        files[f"{NODE}/node{node}/distance"] = "10 21" if node == 0 else "21 10"
    return files


def pci_files(address, class_id, vendor="0x10de", root="pci0000:00", **more):
    folder = f"sys/devices/{root}/{address}"
    return {
        f"{folder}/class": class_id,
        f"{folder}/vendor": vendor,
        **{f"{folder}/{name}": text for name, text in more.items()},
        f"sys/bus/pci/devices/{address}": f"->../../../devices/{root}/{address}",
    }


def cpus_of(parts):
    return [list(part.cpus) for part in parts]


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


def test_gpus_by_class_and_maker(write_root):
    files = two_packages()
    files |= pci_files("0000:00:01.0", "0x030000", local_cpus="cc")
    files |= pci_files("0000:00:02.0", "0x030000", vendor="0x102b", local_cpus="cc")
    files |= pci_files("0000:00:03.0", "0x038000", vendor="0x1002", local_cpus="cc")
    files |= pci_files("0000:00:04.0", "0x030000", vendor="0x1002", local_cpus="cc")
    files |= pci_files("0000:00:05.0", "0x040300", local_cpus="cc")
    machine = Machine.from_sysfs(write_root(files))
    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:00:01.0", "0000:00:03.0"]
    assert [gpu.id for gpu in machine.gpus] == [0, 1]
    assert {gpu.numa_node for gpu in machine.gpus} == {1}
    assert machine.gpus[0].pci_path == ("pci0000:00", "0000:00:01.0")


def test_a_device_may_tell_its_cpus_or_its_node_or_nothing(write_root):
    buses = {
        "0000:10:00.0": {"local_cpulist": "2-3,6-7", "numa_node": "-1"},
        "0000:20:00.0": {"numa_node": "1"},
        "0000:30:00.0": {"numa_node": "-1"},
        "0000:40:00.0": {"local_cpus": "02", "numa_node": "-1"},
        "10000:50:00.0": {"local_cpus": "ff"},
    }
    files = two_packages()
    for address, more in buses.items():
        files |= pci_files(address, "0x030200", root=f"pci{address[:-5]}", **more)
    machine = Machine.from_sysfs(write_root(files))
    assert [(gpu.pci_address, gpu.numa_node, gpu.cpus) for gpu in machine.gpus] == [
        ("0000:10:00.0", 1, (2, 3, 6, 7)),
        ("0000:20:00.0", 1, (2, 3, 6, 7)),
        ("0000:30:00.0", None, tuple(range(8))),
        ("0000:40:00.0", 0, (1,)),
        ("10000:50:00.0", None, tuple(range(8))),
    ]


def test_named_devices_are_found_on_the_bus(write_root):
    bridge, nic, ssd = "0000:80:01.0", "0000:81:00.0", "0000:82:00.0"
    files = two_packages()
    files |= pci_files(bridge, "0x060400", root="pci0000:80", local_cpus="cc")
    files |= pci_files(nic, "0x020700", root=f"pci0000:80/{bridge}", local_cpus="cc")
    files |= pci_files(ssd, "0x010802", root=f"pci0000:80/{bridge}", local_cpus="cc")
    on_bus = f"->../../devices/pci0000:80/{bridge}"
    files |= {
        "sys/class/net/ib0": f"{on_bus}/{nic}/net/ib0",
        "sys/class/net/lo": "->../../devices/virtual/net/lo",
        "sys/class/net/usb0": "->../../devices/pci0000:80/0000:80:02.0/usb1/net/usb0",
        "sys/class/net/vif0": "->../../devices/vif-0/net/vif0",
        "sys/class/infiniband/mlx5_0": f"{on_bus}/{nic}/infiniband/mlx5_0",
        "sys/class/infiniband/hfi1_0": f"{on_bus}/0000:83:00.0/infiniband/hfi1_0",
        "sys/class/block/nvme0n1": f"{on_bus}/{ssd}/nvme/nvme0/nvme0n1",
        "sys/class/block/nvme0n1p1": f"{on_bus}/{ssd}/nvme/nvme0/nvme0n1/nvme0n1p1",
        "sys/class/block/sda": f"{on_bus}/{ssd}/ata1/block/sda",
    }
    machine = Machine.from_sysfs(write_root(files))
    assert [(x.name, x.rdma, x.pci_address, x.numa_node) for x in machine.nics] == [
        ("hfi1_0", ("hfi1_0",), "0000:83:00.0", None),
        ("ib0", ("mlx5_0",), nic, 1),
        ("vif0", (), None, None),
    ]
    assert machine.nics[1].pci_path == ("pci0000:80", bridge, nic)
    (nvme,) = machine.nvme
    assert (nvme.name, nvme.pci_address, nvme.numa_node) == ("nvme0n1", ssd, 1)


def cgroup2(name="/job"):
    return {
        "proc/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0",
        "proc/self/cgroup": f"0::{name}",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory",
    }


def cgroup1(name="/job"):
    return {
        "proc/mounts": (
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
            "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
            "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
            "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0"
        ),
        "proc/self/cgroup": (
            f"5:memory:{name}\n4:cpu,cpuacct:{name}\n3:cpuset:{name}\n0::/init.scope"
        ),
    }


def test_cgroup_2(write_root):
    files = {
        "job/cpuset.cpus.effective": "1-3",
        "job/cpuset.mems.effective": "1",
        "job/memory.max": "max",
        "job/cpu.max": "150000 100000",
        "memory.max": "1048576",
        "cpu.max": "max 100000",
    }
    machine = Machine.from_sysfs(
        write_root(
            two_packages()
            | cgroup2()
            | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        )
    )
    assert machine.cpus == (1, 2, 3)
    assert cpus_of(machine.packages) == [[1], [2, 3]]
    assert cpus_of(machine.cores) == [[1], [2], [3]]
    assert [core.numa_node for core in machine.cores] == [None, 1, 1]
    assert [(node.id, node.cpus) for node in machine.numa_nodes] == [(1, (2, 3))]
    assert machine.memory_limit_bytes == machine.memory_bytes == 2**20
    assert machine.cpu_quota == 1.5


@pytest.mark.parametrize("sees_host", [True, False])
def test_cgroup_1(sees_host, write_root):
    # A container sees its own cgroup as the mount, and its name as the host has it.
    place = "/job" if sees_host else ""
    files = {
        f"cpuset{place}/cpuset.cpus": "4-7",
        f"cpuset{place}/cpuset.mems": "0-1",
        f"memory{place}/memory.limit_in_bytes": "2097152",
        f"cpu,cpuacct{place}/cpu.cfs_quota_us": "50000",
        f"cpu,cpuacct{place}/cpu.cfs_period_us": "100000",
    }
    machine = Machine.from_sysfs(
        write_root(
            two_packages()
            | cgroup1()
            | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        )
    )
    assert machine.cpus == (4, 5, 6, 7)
    assert machine.memory_limit_bytes == 2 << 20
    assert machine.cpu_quota == 0.5


def test_cgroup_1_without_limits(write_root):
    files = {
        "memory/job/memory.limit_in_bytes": "9223372036854771712",
        "cpu,cpuacct/job/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        "cpuset/job/cpuset.cpus": "",
    }
    machine = Machine.from_sysfs(
        write_root(
            two_packages()
            | cgroup1()
            | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        )
    )
    assert machine.cpus == tuple(range(8))
    assert machine.memory_limit_bytes is machine.cpu_quota is None


def test_old_cpusets(write_root):
    files = two_packages() | {
        "proc/mounts": "none /dev/cpu\\040set cpuset rw 0 0",
        "proc/self/cpuset": "/torque/job",
        "dev/cpu set/torque/job/cpus": "0,2",
        "dev/cpu set/torque/job/mems": "0",
    }
    machine = Machine.from_sysfs(write_root(files))
    assert machine.cpus == (0, 2)
    assert [node.id for node in machine.numa_nodes] == [0]


@pytest.mark.parametrize("name", ["/", "/../other", "/gone/away"])
def test_a_name_that_leads_nowhere_means_the_mount(name, write_root):
    files = two_packages() | cgroup2(name)
    files["sys/fs/cgroup/cpuset.cpus.effective"] = "0-1"
    assert Machine.from_sysfs(write_root(files)).cpus == (0, 1)


def test_the_affinity_of_the_process_counts(write_root):
    files = two_packages() | {
        "proc/self/status": (
            "Name:\tpython\nCpus_allowed:\t00000000,0000000f\n"
            "Cpus_allowed_list:\t0-3\nMems_allowed:\t00000000,00000001\n"
        )
    }
    machine = Machine.from_sysfs(write_root(files))
    assert machine.cpus == (0, 1, 2, 3)
    assert [node.id for node in machine.numa_nodes] == [0]


def test_where_no_node_is_allowed_the_memory_is_in_one(write_root):
    files = two_packages() | {"proc/self/status": "Mems_allowed:\t4"}
    (node,) = Machine.from_sysfs(write_root(files)).numa_nodes
    assert (node.id, node.cpus) == (0, tuple(range(8)))


def test_a_package_with_memory_but_no_cpu_stays(write_root):
    files = two_packages() | cgroup2()
    files["sys/fs/cgroup/job/cpuset.cpus.effective"] = "0-1"
    machine = Machine.from_sysfs(write_root(files))
    assert cpus_of(machine.packages) == [[0, 1], []]
    assert [node.memory_only for node in machine.numa_nodes] == [False, True]


def test_no_cpu_at_all_is_refused(write_root):
    files = two_packages() | cgroup2()
    files["sys/fs/cgroup/job/cpuset.cpus.effective"] = "8"
    message = (
        r"online and allowed\. Received: 0-7 online, 8 allowed\. Look at the cgroup"
    )
    with pytest.raises(ValueError, match=message):
        Machine.from_sysfs(write_root(files))


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
