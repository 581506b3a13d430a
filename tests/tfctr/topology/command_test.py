"""`python -m tfctr topology`."""

import json

import pytest

from tfctr import cli
from tfctr.topology import Machine, render

XML = """<topology version="2.0"><object type="Machine" cpuset="0x1" nodeset="0x1">
<object type="NUMANode" os_index="0" cpuset="0x1" local_memory="1073741824"/>
<object type="PU" os_index="0" cpuset="0x1"/></object></topology>"""


@pytest.fixture
def xml(tmp_path):
    file = tmp_path / "machine.xml"
    file.write_text(XML)
    return file


def test_text_of_a_file(xml, capsys):
    assert cli.main(["topology", "--hwloc-xml", str(xml)]) == 0
    assert capsys.readouterr().out == (
        "Machine: 0 packages, 1 NUMA node, 0 cores, 1 hardware thread, 1 GiB\n"
        "  NUMA node 0: 1 GiB, CPUs 0, 0 cores\n"
    )


def test_json_stands_alone(xml, capsys):
    assert cli.main(["topology", "--hwloc-xml", str(xml), "--json"]) == 0
    streams = capsys.readouterr()
    plain = json.loads(streams.out)
    assert plain["machine"] == Machine.from_hwloc_xml(xml).to_dict()
    assert streams.err == ""


def test_a_root_of_sysfs(write_root, capsys):
    root = write_root({"sys/devices/system/cpu/cpu0": None, "proc/stat": ""})
    assert cli.main(["topology", "--sysfs", str(root)]) == 0
    assert capsys.readouterr().out == render(Machine.from_sysfs(root)) + "\n"


def test_this_machine(capsys):
    assert cli.main(["topology", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["machine"]
    assert Machine.from_dict(plain) == Machine.read()


def test_a_wrong_root_is_told(tmp_path, capsys):
    assert cli.main(["topology", "--sysfs", str(tmp_path), "--json"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("tfctr: The root of sysfs must hold `sys/devices")


def test_two_sources_are_refused(xml, capsys):
    with pytest.raises(SystemExit):
        cli.main(["topology", "--sysfs", "/", "--hwloc-xml", str(xml)])
    assert "not allowed with argument" in capsys.readouterr().err
