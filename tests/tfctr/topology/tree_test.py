"""Machines as text."""

from tfctr.topology import (
    Cache,
    Core,
    Gpu,
    Machine,
    Nic,
    NumaNode,
    NvlinkPeer,
    Nvme,
    Package,
    render,
)


def test_nodes_stand_in_packages_and_devices_in_nodes():
    machine = Machine(
        cpus=(0, 1, 2, 3, 4, 5),
        packages=(Package(0, (0, 1, 2, 3), "Some CPU"), Package(None, (4, 5))),
        numa_nodes=(
            NumaNode(0, (0, 1), 3 * 2**30, (10, 12, 12, 40)),
            NumaNode(1, (2, 3), 3 * 2**30, (12, 10, 12, 40)),
            NumaNode(2, (0, 1, 2, 3), 2**40, (12, 12, 10, 40), memory_only=True),
            NumaNode(8, (), 2**20, (40, 40, 40, 10), memory_only=True),
        ),
        cores=(Core(0, 0, 0, (0, 1)), Core(1, 0, 1, (2, 3))),
        caches=(
            Cache(3, "unified", 32 * 2**20, (0, 1)),
            Cache(2, "unified", 2**20, (0, 1)),
            Cache(1, "data", 32768, (2, 3)),
            Cache(1, "instruction", 32768, (2, 3)),
        ),
        gpus=(
            Gpu(
                0,
                "0000:0a:00.0",
                numa_node=0,
                name="Some GPU",
                memory_bytes=2**34,
                nvlink_peers=(
                    NvlinkPeer("gpu", "0000:0b:00.0", 5 * 10**10),
                    NvlinkPeer("package", "0", 10**10),
                    NvlinkPeer("switch", "0000:1a:00.0", 25 * 10**9),
                    NvlinkPeer("switch", "0000:1b:00.0", 25 * 10**9),
                ),
            ),
            Gpu(1, "0000:0b:00.0", numa_node=1),
        ),
        nics=(Nic("eth0", (), "0000:0c:00.0", cpus=(0, 1, 2, 3)), Nic("ib0", ("m0",))),
        nvme=(Nvme("nvme0n1", "0000:0d:00.0", numa_node=8),),
        memory_limit_bytes=2**31,
        cpu_quota=2.5,
    )
    assert render(machine).splitlines() == [
        "Machine: 2 packages, 4 NUMA nodes, 2 cores, 6 hardware threads, "
        "2 GiB by limit of the cgroup, time of 2.5 CPUs by quota of the cgroup",
        "  Package 0: CPUs 0-3, Some CPU",
        "    NUMA node 0: 3 GiB, CPUs 0-1, 1 core, L3 1 x 32 MiB",
        "      GPU 0: 0000:0a:00.0, Some GPU, 16 GiB, NVLink to GPU 1 50 GB/s, "
        "NVLink to package 0 10 GB/s, NVLink to 2 switches 50 GB/s",
        "    NUMA node 1: 3 GiB, CPUs 2-3, 1 core, L1 1 x 32 KiB",
        "      GPU 1: 0000:0b:00.0",
        "    NUMA node 2: 1 TiB, CPUs 0-3 near",
        "    NIC eth0: 0000:0c:00.0",
        "  Package: CPUs 4-5",
        "  NUMA node 8: 1 MiB, no CPUs",
        "    NVMe nvme0n1: 0000:0d:00.0",
        "  NIC ib0: on no PCI bus, RDMA m0",
        "Distances between NUMA nodes:",
        "       0   1   2   8",
        "   0  10  12  12  40",
        "   1  12  10  12  40",
        "   2  12  12  10  40",
        "   8  40  40  40  10",
    ]


def test_a_node_may_be_around_packages():
    machine = Machine(
        cpus=(0, 1),
        packages=(Package(0, (0,)), Package(1, (1,))),
        numa_nodes=(NumaNode(0, (0, 1), 0, (10,)),),
    )
    assert render(machine).splitlines()[1:] == [
        "  NUMA node 0: unknown memory, CPUs 0-1, 0 cores",
        "    Package 0: CPUs 0",
        "    Package 1: CPUs 1",
    ]
