"""Machines as values: JSON and back, and what JSON is refused."""

import copy
import dataclasses
import json
import math
import re

import pytest

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
    plan,
    render,
)

MACHINE = Machine(
    cpus=(0, 1, 2),
    packages=(Package(0, (0, 1), "Some CPU"), Package(None, (2,))),
    numa_nodes=(
        NumaNode(0, (0, 1), 1024, (10, 21)),
        NumaNode(33, (2,), 2048, (21, 10), memory_only=False),
    ),
    cores=(Core(0, 0, 0, (0, 1)), Core(None, None, None, (2,))),
    caches=(Cache(3, "unified", 4096, (0, 1)),),
    gpus=(
        Gpu(
            id=0,
            pci_address="0000:0a:00.0",
            pci_path=("pci0000:00", "0000:0a:00.0"),
            numa_node=33,
            cpus=(2,),
            name="Some GPU",
            memory_bytes=2**34,
            nvlink_peers=(NvlinkPeer("switch", "0000:1a:00.0", 25 * 10**9),),
        ),
    ),
    nics=(Nic("ib0", ("mlx5_0",), "0000:0b:00.0", numa_node=0),),
    nvme=(Nvme("nvme0n1"),),
    memory_limit_bytes=2**20,
    cpu_quota=1.5,
)


def test_json_gives_the_machine_back():
    assert Machine.from_json(MACHINE.to_json()) == MACHINE
    assert Machine.from_dict(MACHINE.to_dict()) == MACHINE
    assert json.loads(MACHINE.to_json()) == MACHINE.to_dict()


def test_the_layout_of_json():
    plain = MACHINE.to_dict()
    assert plain["numa_nodes"][1] == {
        "id": 33,
        "cpus": [2],
        "memory_bytes": 2048,
        "distances": [21, 10],
        "memory_only": False,
    }
    assert {"packages", "numa_nodes", "gpus", "nics", "nvme"} <= set(plain)


def test_the_limit_of_a_cgroup_bounds_memory():
    assert MACHINE.memory_bytes == 3072
    limited = dataclasses.replace(MACHINE, memory_limit_bytes=2000)
    assert limited.memory_bytes == 2000
    assert dataclasses.replace(MACHINE, memory_limit_bytes=None).memory_bytes == 3072
    # Where the machine does not tell its memory, the limit does.
    node = NumaNode(0, (0,), memory_bytes=0)
    assert Machine((0,), (), (node,), memory_limit_bytes=5).memory_bytes == 5


def test_machines_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        MACHINE.cpus = ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sockets": []}, "Received: the field sockets, which is unknown"),
        ({"cpus": 3}, "Received: cpus=3"),
        ({"cpus": ["0"]}, r"Received: cpus\[0\]='0'"),
        ({"nvme": [{"name": 7}]}, r"Received: nvme\[0\]\.name=7"),
        ({"nvme": [{}]}, r"Received: no field nvme\[0\]\.name\. Write it anew"),
        ({"nvme": ["nvme0n1"]}, r"Received: nvme\[0\]='nvme0n1'"),
        ({"cpu_quota": "all"}, "Received: cpu_quota='all'"),
    ],
)
def test_other_fields_are_refused(change, message):
    with pytest.raises(ValueError, match=f"fields that .*to_dict. gives. {message}"):
        Machine.from_dict(MACHINE.to_dict() | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numa_nodes": []}, "numa_nodes with the ids []: at least one, and each once"),
        (
            {"numa_nodes": [MACHINE.to_dict()["numa_nodes"][1]] * 2},
            "numa_nodes with the ids [33, 33]: at least one, and each once",
        ),
        (
            {
                "numa_nodes": [
                    {**MACHINE.to_dict()["numa_nodes"][1], "distances": [10, 0]}
                ]
            },
            "numa_nodes[0].distances=[10, 0]: one for each of 1 numa_nodes, none of "
            "them negative",
        ),
        (
            {"nvme": [{"name": "nvme0n1", "numa_node": 1}]},
            "nvme[0].numa_node=1: null, or of the ids [0, 33] of numa_nodes",
        ),
        (
            {"caches": [{**MACHINE.to_dict()["caches"][0], "cpus": []}]},
            "caches[0].cpus=[]: at least one",
        ),
        (
            {"numa_nodes": [{**MACHINE.to_dict()["numa_nodes"][0], "id": -3}]},
            "-3 in numa_nodes[0]: ids from 0 to 2147483647",
        ),
        (
            {"numa_nodes": [{**MACHINE.to_dict()["numa_nodes"][0], "cpus": [-1]}]},
            "-1 in numa_nodes[0]: ids from 0 to 2147483647",
        ),
        (
            {
                "numa_nodes": [
                    {**MACHINE.to_dict()["numa_nodes"][0], "memory_bytes": -5}
                ]
            },
            "numa_nodes[0].memory_bytes=-5: 0 or more",
        ),
        ({"cpu_quota": math.nan}, "cpu_quota=nan: null, or a positive number"),
        ({"cpu_quota": 0}, "cpu_quota=0.0: null, or a positive number"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change, message):
    message = f"must fit together. Received: {message}. Correct it, or write"
    with pytest.raises(ValueError, match=re.escape(message)):
        Machine.from_dict(MACHINE.to_dict() | change)


def test_a_machine_with_a_damaged_value_is_refused_or_planned():
    for damaged in damaged_copies(MACHINE.to_dict()):
        try:
            machine = Machine.from_dict(damaged)
            render(machine, plan(machine, 2, share_cpus=True))
        except ValueError as error:
            assert "Received: " in str(error)


def damaged_copies(plain):
    """Yields copies without some value, or with another in its place."""
    for path in list(paths(plain)):
        for value in (..., None, True, -1, 99, 10**30, 1.5, "x", [], [99], {}):
            damaged = copy.deepcopy(plain)
            owner = damaged
            for key in path[:-1]:
                owner = owner[key]
            owner[path[-1]] = value
            if value is ...:
                del owner[path[-1]]
            yield damaged


def paths(plain):
    inside = plain.items() if isinstance(plain, dict) else enumerate(plain)
    for key, value in inside:
        yield (key,)
        if isinstance(value, dict | list):
            yield from ((key, *rest) for rest in paths(value))


def test_whole_numbers_may_be_quotas():
    assert Machine.from_dict(MACHINE.to_dict() | {"cpu_quota": 2}).cpu_quota == 2.0


def test_what_is_no_object_is_refused():
    with pytest.raises(ValueError, match=r"Received: Machine=\[\]\. Write it anew"):
        Machine.from_json("[]")


def test_what_is_no_json_is_refused():
    with pytest.raises(
        ValueError, match=r"JSON that .* gives\. Received: 'Machine:' \("
    ):
        Machine.from_json("Machine:")
