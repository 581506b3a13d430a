"""GPUs, NICs and SSDs as Linux shows them on the bus."""

from helpers.machine_files import two_packages
from tfctr.topology import Machine


def pci_files(address, class_id, vendor="0x10de", root="pci0000:00", **more):
    folder = f"sys/devices/{root}/{address}"
    return {
        f"{folder}/class": class_id,
        f"{folder}/vendor": vendor,
        **{f"{folder}/{name}": text for name, text in more.items()},
        f"sys/bus/pci/devices/{address}": f"->../../../devices/{root}/{address}",
    }


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
