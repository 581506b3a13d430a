"""XML of hwloc: its versions, its matrices, and files that are something else."""

import pytest

from tfctr.topology import Machine, NvlinkPeer

# A machine of two nodes with a GPU each, as hwloc 2 writes it.
VERSION_2 = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" cpuset="0x0000000f" complete_cpuset="0x0000001f"
      allowed_cpuset="0x00000007" nodeset="0x00000011" allowed_nodeset="0xf...f">
    <object type="Package" os_index="0" cpuset="0x00000003" gp_index="3">
      <info name="CPUModel" value="Some CPU  "/>
      <object type="NUMANode" os_index="0" cpuset="0x00000003" gp_index="4"
          local_memory="1024"/>
      <object type="L3Cache" cpuset="0x00000003" cache_size="4096" depth="3"
          cache_type="0">
        <object type="Core" os_index="0" cpuset="0x00000003">
          <object type="PU" os_index="0" cpuset="0x00000001"/>
          <object type="PU" os_index="1" cpuset="0x00000002"/>
        </object>
      </object>
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-01]">
        <object type="Bridge" bridge_type="1-1" bridge_pci="0000:[01-01]"
            pci_busid="0000:00:02.0" pci_type="0604 [8086:2f04] [0000:0000] 02">
          <object type="PCIDev" gp_index="11" pci_busid="0000:01:00.0"
              pci_type="0302 [10de:1db8] [10de:131d] a1">
            <object type="OSDev" gp_index="21" name="cuda0" subtype="CUDA"
                osdev_type="5">
              <info name="GPUModel" value="Some GPU"/>
              <info name="CUDAGlobalMemorySize" value="2"/>
            </object>
          </object>
          <object type="PCIDev" gp_index="12" pci_busid="0000:02:00.0"
              pci_type="0302 [10de:1db8] [10de:131d] a1">
            <object type="OSDev" gp_index="22" name="nvml1" osdev_type="1"/>
          </object>
          <object type="PCIDev" gp_index="13" subtype="NVSwitch"
              pci_busid="0000:03:00.0" pci_type="0680 [10de:1ac2] [0000:0000] a1"/>
          <object type="PCIDev" pci_busid="0000:04:00.0"
              pci_type="0207 [15b3:1013] [0000:0000] 00">
            <object type="OSDev" name="ib0" osdev_type="2"/>
            <object type="OSDev" name="mlx5_0" osdev_type="3"/>
          </object>
          <object type="PCIDev" pci_busid="0000:05:00.0"
              pci_type="0108 [144d:a804] [0000:0000] 00">
            <object type="OSDev" name="nvme0n1" subtype="Disk" osdev_type="0"/>
          </object>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x0000000c" gp_index="5">
      <object type="NUMANode" os_index="4" cpuset="0x0000000c" gp_index="6"
          local_memory="2048"/>
      <object type="PU" os_index="2" cpuset="0x00000004"/>
      <object type="PU" os_index="3" cpuset="0x00000008"/>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="INDEX">
    <indexes length="4">NODES</indexes>
    <u64values length="6">10 21 </u64values>
    <u64values length="6">31 10 </u64values>
  </distances2>
  <distances2hetero nbobjs="4" kind="25" name="NVLinkBandwidth">
    <indexes length="40">OSDev:21 OSDev:22 PCIDev:13 Package:3 </indexes>
    <u64values length="40">1000000 50000 25000 40000 50000 1000000 25000 0 </u64values>
    <u64values length="40">25000 25000 0 0 40000 0 0 1000000 </u64values>
  </distances2hetero>
</topology>
"""
VERSION_1 = """<topology>
  <object type="Machine" os_index="0" cpuset="0x00000003" local_memory="4096">
    <distances nbobjs="2" relative_depth="2" latency_base="10.000000">
      <latency value="1.000000"/><latency value="2.100000"/>
      <latency value="2.100000"/><latency value="1.000000"/>
    </distances>
    <object type="NUMANode" os_index="0" cpuset="0x00000001" local_memory="1024">
      <object type="Socket" os_index="4294967295" cpuset="0x00000001">
        <object type="Cache" cpuset="0x00000001" cache_size="4096" depth="2">
          <object type="PU" os_index="0" cpuset="0x00000001"/>
        </object>
      </object>
    </object>
    <object type="NUMANode" os_index="1" cpuset="0x00000002" local_memory="2048">
      <object type="PU" os_index="1" cpuset="0x00000002"/>
    </object>
  </object>
</topology>
"""


@pytest.fixture
def read(tmp_path):
    def machine(text):
        file = tmp_path / "machine.xml"
        file.write_text(text)
        return Machine.from_hwloc_xml(file)

    return machine


@pytest.mark.parametrize(("indexing", "nodes"), [("os", "0 4"), ("gp", "4 6")])
def test_version_2(indexing, nodes, read):
    machine = read(VERSION_2.replace("INDEX", indexing).replace("NODES", nodes))
    assert machine.cpus == (0, 1, 2)
    assert [(x.id, x.cpus, x.model) for x in machine.packages] == [
        (0, (0, 1), "Some CPU"),
        (1, (2,), ""),
    ]
    assert [(x.id, x.cpus, x.distances) for x in machine.numa_nodes] == [
        (0, (0, 1), (10, 21)),
        (4, (2,), (31, 10)),
    ]
    assert [(x.cpus, x.package, x.numa_node) for x in machine.cores] == [((0, 1), 0, 0)]
    assert [(x.level, x.kind, x.size_bytes) for x in machine.caches] == [
        (3, "unified", 4096)
    ]


def test_devices_of_version_2(read):
    machine = read(VERSION_2.replace("INDEX", "os").replace("NODES", "0 4"))
    first, second = machine.gpus
    assert (first.name, first.memory_bytes, first.numa_node) == ("Some GPU", 2048, 0)
    assert first.pci_path == ("pci0000:00", "0000:00:02.0", "0000:01:00.0")
    assert first.nvlink_peers == (
        NvlinkPeer("gpu", "0000:02:00.0", 50 * 10**9),
        NvlinkPeer("package", "0", 40 * 10**9),
        NvlinkPeer("switch", "0000:03:00.0", 25 * 10**9),
    )
    assert [peer.kind for peer in second.nvlink_peers] == ["gpu", "switch"]
    assert [(x.name, x.rdma, x.numa_node) for x in machine.nics] == [
        ("ib0", ("mlx5_0",), 0)
    ]
    assert [(x.name, x.pci_address) for x in machine.nvme] == [
        ("nvme0n1", "0000:05:00.0")
    ]


def test_version_3_numbers_devices_by_bits(read):
    text = VERSION_2.replace("INDEX", "os").replace("NODES", "0 4")
    changes = {
        "2.0": "3.0",
        '"ib0" osdev_type="2"': '"ib0" osdev_type="16"',
        '"mlx5_0" osdev_type="3"': '"mlx5_0" osdev_type="48"',
        'MemorySize" value="2"': 'MemorySize" value="2KiB"',
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    machine = read(text)
    assert [(x.name, x.rdma) for x in machine.nics] == [("ib0", ("mlx5_0",))]
    assert machine.gpus[0].memory_bytes == 2048


def test_version_1(read):
    machine = read(VERSION_1)
    assert [(x.id, x.cpus) for x in machine.packages] == [(None, (0,))]
    assert [(x.id, x.cpus, x.memory_bytes) for x in machine.numa_nodes] == [
        (0, (0,), 1024),
        (1, (1,), 2048),
    ]
    assert [node.distances for node in machine.numa_nodes] == [(10, 21), (21, 10)]
    assert machine.caches[0].level == 2


def test_without_numa_there_is_one_node(read):
    machine = read(
        '<topology><object type="Machine" cpuset="0x1" local_memory="4096">'
        '<object type="PU" os_index="0" cpuset="0x1"/></object></topology>'
    )
    assert [(x.id, x.cpus, x.memory_bytes) for x in machine.numa_nodes] == [
        (0, (0,), 4096)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            r"whole and well formed\. Received: .*\(no element found: .*Write the file",
        ),
        (VERSION_1[:300], r"whole and well formed\. Received: '.*machine\.xml'"),
        ('<?xml version="1.0" encoding="x"?><a/>', r"whole .*machine\.xml' \(unknown"),
        (VERSION_2.replace("2.0", "new"), r"numbers and sets .*literal .*'new'\)"),
        ("<svg></svg>", r"have a <topology> element\. Received: '.*', a <svg> with 0"),
        ("<topology/>", r"have one <object> with a cpuset in <topology>\. Received"),
        (
            VERSION_1.replace("PU", "Misc"),
            r"have objects of type PU, each with a cpuset",
        ),
        (VERSION_1.replace("0x", "x"), r"numbers and sets of CPUs \(invalid literal"),
        (VERSION_2, r"numbers and sets of CPUs \(invalid literal .*'NODES'"),
        (
            VERSION_2.replace("NODES", "0 4").replace("25000 0 0 40000", "25000"),
            r"\(13 bandwidths between 4 objects\)",
        ),
        (
            VERSION_2.replace("NODES", "0 4").replace("PCIDev:13", "PCIDev:99"),
            r"sets of CPUs \(the object '99' is missing\)",
        ),
    ],
)
def test_what_is_no_such_xml_is_refused(text, message, read):
    with pytest.raises(ValueError, match=message):
        read(text)


def test_a_file_that_is_missing_is_refused(tmp_path):
    message = (
        r"can be read\. Received: '.*gone\.xml' \(No such file or directory\)\. Wr"
    )
    with pytest.raises(ValueError, match=message):
        Machine.from_hwloc_xml(tmp_path / "gone.xml")


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\(Is a directory\)"):
        Machine.from_hwloc_xml(tmp_path)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("0", r"'.*machine.xml' with numa_nodes with the ids \[0, 0\]: at least one,"),
        ("9" * 24, r"numbers and sets of CPUs \(.*machine.xml'"),
    ],
)
def test_numbers_of_nodes_that_cannot_be_are_refused(tmp_path, number, message):
    file = tmp_path / "machine.xml"
    file.write_text(
        '<topology version="2.0"><object type="Machine" cpuset="0x3">'
        '<object type="NUMANode" os_index="0" cpuset="0x1"/>'
        '<object type="Package" cpuset="0x2">'
        f'<object type="NUMANode" os_index="{number}" cpuset="0x2"/></object>'
        '<object type="PU" os_index="0" cpuset="0x1"/>'
        '<object type="PU" os_index="1" cpuset="0x2"/></object></topology>'
    )
    with pytest.raises(ValueError, match=message):
        Machine.from_hwloc_xml(file)
