"""`python -m tfctr topology`."""

import json

import pytest

from tfctr import cli
from tfctr.topology import Machine, Plan, draw, explain, plan, render

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
        "    Rank 0: CPUs 0, 1 + 2 threads, memory: bind 0, /CPU:0\n"
    )


def test_json_stands_alone(xml, capsys):
    assert cli.main(["topology", "--hwloc-xml", str(xml), "--json"]) == 0
    streams = capsys.readouterr()
    plain = json.loads(streams.out)
    machine = Machine.from_hwloc_xml(xml)
    assert plain == {"machine": machine.to_dict(), "plan": plan(machine).to_dict()}
    assert streams.err == ""


def test_a_root_of_sysfs(write_root, capsys):
    root = write_root({"sys/devices/system/cpu/cpu0": None, "proc/stat": ""})
    assert cli.main(["topology", "--sysfs", str(root)]) == 0
    machine = Machine.from_sysfs(root)
    assert capsys.readouterr().out == render(machine, plan(machine)) + "\n"


def test_this_machine(capsys):
    assert cli.main(["topology", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["machine"]
    assert Machine.from_dict(plain) == Machine.read()


@pytest.fixture
def two_nodes(two_sockets, monkeypatch):
    """What the command reads as this machine."""
    machine = two_sockets(4)
    monkeypatch.setattr(Machine, "read", lambda: machine)
    return machine


def test_a_plan_for_some_ranks_in_words(two_nodes, capsys):
    assert cli.main(["topology", "--ranks", "4", "--explain"]) == 0
    found = plan(two_nodes, 4)
    expected = f"{render(two_nodes, found)}\n{explain(two_nodes, found)}\n"
    assert capsys.readouterr().out == expected


def test_a_plan_for_some_ranks_as_json(two_nodes, capsys):
    assert cli.main(["topology", "--ranks", "3", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["plan"]
    assert Plan.from_dict(plain) == plan(two_nodes, 3)


def test_a_drawing_goes_to_a_file(two_nodes, tmp_path, capsys):
    file = tmp_path / "machine.svg"
    assert cli.main(["topology", "--ranks", "4", "--svg", str(file), "--json"]) == 0
    assert file.read_text() == draw(two_nodes, plan(two_nodes, 4))
    json.loads(capsys.readouterr().out)


def test_a_drawing_that_cannot_be_written_is_told(two_nodes, tmp_path, capsys):
    assert cli.main(["topology", "--svg", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tfctr: --svg must name a file that can be written. Rec")


def test_words_and_json_do_not_mix(two_nodes, capsys):
    assert cli.main(["topology", "--json", "--explain"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "Received: --json --explain." in streams.err


def test_too_many_ranks_are_told(two_nodes, capsys):
    assert cli.main(["topology", "--ranks", "9"]) == 2
    assert "Received: ranks_per_node=9, with 8 hardw" in capsys.readouterr().err


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_of_ranks_below_one_are_told(two_nodes, number, capsys):
    assert cli.main(["topology", "--ranks", str(number), "--json"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    message = f"must be a positive integer. Received: ranks_per_node={number}."
    assert message in streams.err


def test_more_ranks_than_threads_share_when_asked(two_nodes, capsys):
    assert cli.main(["topology", "--ranks", "9", "--share-cpus", "--json"]) == 0
    found = Plan.from_dict(json.loads(capsys.readouterr().out)["plan"])
    assert found == plan(two_nodes, 9, share_cpus=True)


def test_gpus_hidden_from_this_process_are_left_out(cube_mesh, monkeypatch, capsys):
    machine = cube_mesh()
    monkeypatch.setattr(Machine, "read", lambda: machine)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert cli.main(["topology", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [rank["gpu"] for rank in plain["plan"]["ranks"]] == [2, 5]
    assert len(plain["machine"]["gpus"]) == 8


@pytest.mark.parametrize("length", [0, 60, 200])
def test_a_truncated_file_is_told(xml, length, capsys):
    xml.write_text(XML[:length])
    assert cli.main(["topology", "--hwloc-xml", str(xml)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "tfctr: The XML of hwloc must be whole and well formed. Rec"
    )
    assert str(xml) in error


def test_a_wrong_root_is_told(tmp_path, capsys):
    assert cli.main(["topology", "--sysfs", str(tmp_path), "--json"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("tfctr: The root of sysfs must hold `sys/devices")


def test_two_sources_are_refused(xml, capsys):
    with pytest.raises(SystemExit):
        cli.main(["topology", "--sysfs", "/", "--hwloc-xml", str(xml)])
    assert "not allowed with argument" in capsys.readouterr().err
