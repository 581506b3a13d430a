"""What a process may use of a machine: its cgroups, and its affinity."""

import pytest

from helpers.machine_files import cpus_of, two_packages
from tfctr.topology import Machine


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
