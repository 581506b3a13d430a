"""Plans: what must hold on every machine, and what odd machines get."""

import dataclasses
import itertools
import pathlib
import re
from xml.etree import ElementTree

import pytest

from tfctr.topology import (
    Cache,
    Core,
    Gpu,
    Machine,
    Nic,
    NumaNode,
    Nvme,
    Plan,
    RankPlan,
    draw,
    explain,
    plan,
    render,
)

GOLDENS = pathlib.Path(__file__).parent / "goldens"


def check(machine, found):
    """What every plan must keep to."""
    given = [cpu for rank in found.ranks for cpu in rank.cpus]
    assert len(given) == len(set(given))
    assert set(given) <= set(machine.cpus)
    homes = {x.id: x for x in machine.numa_nodes if x.cpus and not x.memory_only}
    for index, rank in enumerate(found.ranks):
        assert rank.local_rank == index
        assert rank.cpus
        assert rank.numa_node == rank.numa_nodes[0]
        here = {cpu for node in rank.numa_nodes for cpu in homes[node].cpus}
        assert set(rank.cpus) <= here
        if rank.gpu is not None:
            assert len(rank.numa_nodes) == 1
            gpu = machine.gpus[rank.gpu]
            assert gpu.numa_node in (None, rank.numa_node)
        assert 1 <= rank.store_threads == rank.intra_op_threads <= len(rank.cpus)
        assert len(rank.devices) == (
            1 if rank.gpu is not None else len(rank.numa_nodes)
        )


# Up to the GPUs of the largest, and twice the NUMA nodes.
@pytest.mark.parametrize("num_ranks", [None, *range(1, 17)])
def test_plans_of_all_machines(machines, num_ranks):
    assert len(machines) >= 7
    assert max(len(machine.gpus) for machine in machines.values()) == 16
    assert max(len(machine.numa_nodes) for machine in machines.values()) == 8
    for machine in machines.values():
        if num_ranks is not None and num_ranks > len(machine.cpus):
            with pytest.raises(ValueError, match=f"ranks_per_node={num_ranks}"):
                plan(machine, num_ranks)
            continue
        found = plan(machine, num_ranks)
        assert num_ranks in (None, len(found.ranks))
        check(machine, found)
        assert plan(Machine.from_json(machine.to_json()), num_ranks) == found
        assert Plan.from_json(found.to_json()) == found
        # Cores are split only in a node with more ranks than cores.
        for node in machine.numa_nodes:
            cores = [set(x.cpus) for x in machine.cores if x.numa_node == node.id]
            here = [rank for rank in found.ranks if node.id in rank.numa_nodes]
            if len(here) <= len(cores):
                for core, rank in itertools.product(cores, here):
                    assert core & set(rank.cpus) in (set(), core)
        if not machine.gpus:
            assert {x for rank in found.ranks for x in rank.cpus} == set(machine.cpus)


@pytest.mark.parametrize(
    ("golden", "name", "num_ranks"),
    [
        ("plan_power8.txt", "power8gpudistances.xml", None),
        ("plan_opteron_3_ranks.txt", "64amd64-4s2n4ca2co.tar.bz2", 3),
        ("plan_two_kinds_of_gpu_5_ranks.txt", "32em64t-2n8c2t-pci-normalio.xml", 5),
    ],
)
def test_plans_read_as_before(machines, golden, name, num_ranks):
    machine = machines[name]
    found = plan(machine, num_ranks)
    text = f"{render(machine, found)}\n\n{explain(machine, found)}\n"
    assert text == (GOLDENS / golden).read_text()


def test_the_plan_of_the_cube_mesh_is_as_before(cube_mesh):
    machine = cube_mesh()
    found = plan(machine, num_hosts=2)
    check(machine, found)
    assert found.to_json() + "\n" == (GOLDENS / "plan_cube_mesh.json").read_text()
    assert (
        explain(machine, found) + "\n" == (GOLDENS / "plan_cube_mesh.txt").read_text()
    )


def test_two_ranks_of_the_cube_mesh_take_linked_gpus_of_two_nodes(cube_mesh):
    first, second = plan(cube_mesh(), 2).ranks
    assert (first.gpu, first.numa_node) == (0, 0)
    assert (second.gpu, second.numa_node) == (4, 1)


def test_hardware_threads_of_a_core_stay_together(two_sockets):
    ranks = plan(two_sockets(4), 4).ranks
    assert [rank.cpus for rank in ranks] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [rank.intra_op_threads for rank in ranks] == [1, 1, 1, 1]


def test_more_ranks_than_cores_split_them(two_sockets):
    machine = two_sockets(2)
    found = plan(machine, 4)
    check(machine, found)
    assert [rank.cpus for rank in found.ranks] == [(0,), (2,), (1,), (3,)]
    assert "2 cores are split between ranks" in explain(machine, found)


def test_more_ranks_than_threads_are_refused_or_share(two_sockets):
    machine = two_sockets(2)
    with pytest.raises(ValueError, match="ranks_per_node=5, with 4 hardware threads"):
        plan(machine, 5)
    found = plan(machine, 5, share_cpus=True)
    assert [rank.cpus for rank in found.ranks] == [(0, 2), (0, 2), (0, 2), (1,), (3,)]
    assert "Ranks share CPUs" in explain(machine, found)


@pytest.mark.parametrize("num_ranks", [5, 8, 16])
def test_more_gpus_than_threads_share_these_when_asked(machines, num_ranks):
    # The file is of a job that had 4 of the hardware threads.
    machine = machines["nvidiaDGX2.xml"]
    with pytest.raises(
        ValueError,
        match=f"={num_ranks}, with 4 hardware threads that may be used, and 16 GPUs. "
        "Plan for 4 ranks or fewer; ask for more CPUs.*share_cpus=True",
    ):
        plan(machine, num_ranks)
    ranks = plan(machine, num_ranks, share_cpus=True).ranks
    assert len({rank.gpu for rank in ranks}) == len(ranks) == num_ranks
    of_node = {node.id: node.cpus for node in machine.numa_nodes}
    for rank in ranks:
        assert machine.gpus[rank.gpu].numa_node == rank.numa_node
        assert set(rank.cpus) <= set(of_node[rank.numa_node])
    in_first = sum(rank.numa_node == 0 for rank in ranks)
    assert in_first in (num_ranks // 2, num_ranks - num_ranks // 2)


def test_only_some_gpus_may_be_chosen(cube_mesh):
    machine = cube_mesh()
    found = plan(machine, use_gpus=(6, 3))
    assert [rank.gpu for rank in found.ranks] == [3, 6]
    assert [rank.numa_node for rank in found.ranks] == [0, 1]
    assert plan(machine, 1, use_gpus=()) == plan(machine, 1, use_gpus=False)
    assert plan(machine, use_gpus=range(8)) == plan(machine)
    with pytest.raises(
        ValueError, match=r"among the GPUs \[0.*Received: use_gpus=\(9,"
    ):
        plan(machine, use_gpus=(9,))
    with pytest.raises(ValueError, match="or True or False. Received: use_gpus=2. "):
        plan(machine, use_gpus=2)


def test_odd_cores_go_to_the_first_ranks():
    machine = Machine(tuple(range(5)), (), (NumaNode(0, tuple(range(5)), 2**30),))
    found = plan(machine, 2)
    assert [rank.cpus for rank in found.ranks] == [(0, 1, 2), (3, 4)]
    assert "Ranks have 2 to 3 cores" in explain(machine, found)


def test_an_offline_thread_leaves_its_core_with_one():
    cores = tuple(Core(i, None, 0, x) for i, x in enumerate([(0,), (1, 5), (2, 6)]))
    machine = Machine((0, 1, 2, 5, 6), (), (NumaNode(0, (0, 1, 2, 5, 6), 0),), cores)
    assert [rank.cpus for rank in plan(machine, 2).ranks] == [(0, 1, 5), (2, 6)]


def test_cores_that_share_a_cache_go_to_one_rank():
    caches = (
        Cache(3, "unified", 2**20, (0, 2)),
        Cache(3, "unified", 2**20, (1, 3)),
        Cache(1, "data", 2**10, (0,)),
    )
    node = NumaNode(0, (0, 1, 2, 3), 2**30)
    ranks = plan(Machine((0, 1, 2, 3), (), (node,), caches=caches), 2).ranks
    assert [rank.cpus for rank in ranks] == [(0, 2), (1, 3)]


def test_fewer_ranks_than_nodes_take_near_ones_and_name_them(two_sockets):
    (rank,) = plan(two_sockets(4), 1).ranks
    assert rank.numa_nodes == rank.memory_nodes == (0, 1)
    assert rank.devices == ("/CPU:0", "/CPU:1")
    assert rank.memory_policy == "interleave"
    distances = ((10, 30, 20, 30), (30, 10, 30, 20), (20, 30, 10, 30), (30, 20, 30, 10))
    nodes = tuple(NumaNode(i, (i,), 2**30, row) for i, row in enumerate(distances))
    ranks = plan(Machine((0, 1, 2, 3), (), nodes), 2).ranks
    assert [rank.numa_nodes for rank in ranks] == [(0, 2), (1, 3)]


def test_a_gpu_keeps_its_rank_in_its_node(two_sockets):
    machine = two_sockets(4, (Gpu(0, "0000:01:00.0", numa_node=1),))
    found = plan(machine)
    assert [rank.cpus for rank in found.ranks] == [(2, 3, 6, 7)]
    # The other node has memory that a bound rank could never reach.
    assert found.ranks[0].memory_policy == "prefer"
    assert found.ranks[0].devices == ("/GPU:0",)
    assert "No rank runs on CPUs 0-1,4-5" in explain(machine, found)
    assert plan(machine, use_gpus=False).ranks[0].devices == ("/CPU:0",)


def test_more_ranks_than_gpus_share_them_evenly(two_sockets):
    gpus = tuple(Gpu(i, f"0000:0{i}:00.0", numa_node=i) for i in range(2))
    machine = two_sockets(8, gpus)
    found = plan(machine, 4)
    check(machine, found)
    assert [(rank.gpu, rank.shared_gpu) for rank in found.ranks] == [
        (0, True),
        (0, True),
        (1, True),
        (1, True),
    ]
    assert "4 ranks share 2 GPUs: NCCL refuses that" in explain(machine, found)


def test_a_gpu_of_no_single_node_goes_where_the_cores_are(two_sockets):
    gpus = tuple(Gpu(i, f"0000:0{i}:00.0") for i in range(2))
    machine = two_sockets(4, gpus)
    assert [rank.numa_node for rank in plan(machine, 2).ranks] == [0, 1]
    assert "next to no single node" in explain(machine, plan(machine, 2))
    near = dataclasses.replace(gpus[0], cpus=machine.numa_nodes[1].cpus)
    assert plan(two_sockets(4, (near,)), 1).ranks[0].numa_node == 1


def test_a_gpu_whose_node_has_no_cpus_for_us_takes_the_nearest():
    nodes = (
        NumaNode(0, (0,), 2**30, (10, 40, 20)),
        NumaNode(1, (1,), 2**30, (40, 10, 15)),
        NumaNode(2, (), 2**30, (20, 15, 10), memory_only=True),
    )
    machine = Machine((0, 1), (), nodes, gpus=(Gpu(0, "0000:01:00.0", numa_node=2),))
    found = plan(machine)
    assert found.ranks[0].numa_node == 1
    assert "node 1 is the nearest with one" in explain(machine, found)


def test_ranks_leave_a_full_node_of_gpus_before_they_share_cpus():
    nodes = NumaNode(0, (0,), 2**30, (10, 20)), NumaNode(1, (1, 2), 2**30, (20, 10))
    gpus = tuple(Gpu(i, f"0000:0{i}:00.0", numa_node=0) for i in range(2))
    ranks = plan(Machine((0, 1, 2), (), nodes, gpus=gpus), 2).ranks
    assert [rank.cpus for rank in ranks] == [(0,), (1, 2)]


def test_ranks_leave_a_full_node_before_they_share_a_gpu():
    nodes = NumaNode(0, (0,), 2**30, (10, 20)), NumaNode(1, (1, 2), 2**30, (20, 10))
    gpus = tuple(Gpu(i, f"0000:0{i}:00.0", numa_node=i // 2) for i in range(3))
    machine = Machine((0, 1, 2), (), nodes, gpus=gpus)
    ranks = plan(machine).ranks
    assert [rank.gpu for rank in ranks] == [0, 1, 2]
    assert [rank.numa_node for rank in ranks] == [0, 1, 1]
    # Who needs not leave does not.
    assert [rank.gpu for rank in plan(machine, 2).ranks] == [0, 2]


def test_ranks_leave_a_full_node_for_the_nearest():
    nodes = (
        NumaNode(0, (0,), 2**30, (10, 20, 40)),
        NumaNode(1, (1,), 2**30, (20, 10, 40)),
        NumaNode(2, (2, 3, 4), 2**30, (40, 40, 10)),
    )
    gpus = tuple(Gpu(i, f"0000:0{i}:00.0", numa_node=0) for i in range(2))
    machine = Machine(tuple(range(5)), (), nodes, gpus=gpus)
    found = plan(machine)
    assert [rank.cpus for rank in found.ranks] == [(0,), (1,)]
    assert "node 1 is the nearest with one" in explain(machine, found)


def test_a_gpu_stays_in_its_node_where_all_are_said_to_be_as_near():
    nodes = tuple(NumaNode(i, (i,), 2**30, (10, 10)) for i in range(2))
    machine = Machine((0, 1), (), nodes, gpus=(Gpu(0, "0000:01:00.0", numa_node=1),))
    assert plan(machine).ranks[0].numa_node == 1


def test_memory_only_nodes_get_no_rank_and_stay_in_reach():
    nodes = (
        NumaNode(0, (0, 1), 2**30, (10, 17)),
        NumaNode(1, (0, 1), 2**40, (17, 10), memory_only=True),
    )
    (rank,) = plan(Machine((0, 1), (), nodes)).ranks
    assert (rank.numa_node, rank.memory_nodes) == (0, (0,))
    assert rank.memory_policy == "prefer"


def test_memory_of_unknown_size_stays_in_reach(two_sockets):
    machine = two_sockets(4, (Gpu(0, "0000:01:00.0", numa_node=1),))
    nodes = tuple(dataclasses.replace(x, memory_bytes=0) for x in machine.numa_nodes)
    machine = dataclasses.replace(machine, numa_nodes=nodes)
    (rank,) = plan(machine).ranks
    assert (rank.memory_policy, rank.memory_nodes, rank.memory_bytes) == (
        "prefer",
        (1,),
        0,
    )
    assert [rank.memory_policy for rank in plan(machine, 2).ranks] == ["prefer"] * 2


def test_a_node_without_memory_uses_the_nearest():
    nodes = (
        NumaNode(0, (0,), 0, (10, 30, 20)),
        NumaNode(1, (1,), 2**30, (30, 10, 20)),
        NumaNode(2, (2,), 2**30, (20, 20, 10)),
    )
    ranks = plan(Machine((0, 1, 2), (), nodes), 3).ranks
    assert [rank.memory_nodes for rank in ranks] == [(2,), (1,), (2,)]
    assert [rank.memory_bytes for rank in ranks] == [2**29, 2**30, 2**29]


def test_limits_of_the_cgroup_bound_threads_and_memory(two_sockets):
    machine = two_sockets(8, cpu_quota=5.5, memory_limit_bytes=2**30)
    ranks = plan(machine, 2).ranks
    assert [rank.intra_op_threads for rank in ranks] == [2, 2]
    assert [rank.inter_op_threads for rank in ranks] == [2, 2]
    assert [rank.memory_bytes for rank in ranks] == [2**29, 2**29]
    assert [len(rank.cpus) for rank in ranks] == [8, 8]
    assert "quota of 5.5 CPUs" in explain(machine, plan(machine, 2))
    machine = two_sockets(8, cpu_quota=0.5)
    assert plan(machine, 2).ranks[0].intra_op_threads == 1


def test_cpus_beside_forbidden_memory_use_what_is_left():
    machine = Machine((4, 5), (), (NumaNode(0, (), 2**30, memory_only=True),))
    (rank,) = plan(machine).ranks
    assert (rank.cpus, rank.memory_nodes) == ((4, 5), (0,))


def test_devices_are_the_nearest_and_shared_evenly(two_sockets):
    nics = tuple(Nic(f"ib{i}", ("m",), numa_node=i // 2) for i in range(4))
    machine = two_sockets(
        8,
        nics=(Nic("eth0", numa_node=0), *nics),
        nvme=(Nvme("nvme0n1", numa_node=1), Nvme("nvme1n1", numa_node=0)),
    )
    ranks = plan(machine, 4).ranks
    assert [rank.nic for rank in ranks] == ["ib0", "ib1", "ib2", "ib3"]
    assert [rank.nvme for rank in ranks] == ["nvme1n1"] * 2 + ["nvme0n1"] * 2


def test_directories_go_to_the_ranks_near_their_ssd(two_sockets):
    machine = two_sockets(
        8, nvme=(Nvme("nvme0n1", numa_node=1), Nvme("nvme1n1", numa_node=0))
    )
    ssd = {"/a": "nvme0n1", "/b": "nvme1n1", "/c": None}
    ranks = plan(machine, 2, ssd=ssd).ranks
    assert [(rank.ssd, rank.nvme) for rank in ranks] == [
        ("/b", "nvme1n1"),
        ("/a", "nvme0n1"),
    ]
    ranks = plan(machine, 3, ssd={"/c": None, "/d": None}).ranks
    assert [rank.ssd for rank in ranks] == ["/c", "/d", "/c"]


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_numbers_must_be_positive(two_sockets, number):
    with pytest.raises(ValueError, match=f"Received: ranks_per_node={number}"):
        plan(two_sockets(), number)
    with pytest.raises(ValueError, match=f"Received: num_hosts={number}"):
        plan(two_sockets(), num_hosts=number)


def test_a_damaged_plan_is_told(monkeypatch):
    with pytest.raises(ValueError, match=r"Received: '\{' .*Plan anew"):
        Plan.from_json("{")
    with pytest.raises(ValueError, match="the field ranks\\[0\\].color, which is unkn"):
        Plan.from_dict({"ranks": [{"color": 1}]})
    rank = {"local_rank": 0, "numa_node": 0, "numa_nodes": [0], "cpus": [0]}
    for ranks, environment, message in [
        ([{"local_rank": 0}], [], "Received: no field ranks[0].numa_node. Plan anew"),
        (
            [{**rank, "cpus": [-1]}],
            [],
            "Received: -1 in ranks[0].cpus: from 0 to 2147483647",
        ),
        ([{**rank, "cpus": []}], [], "Received: ranks[0].cpus=[]: at least one."),
        (
            [{**rank, "intra_op_threads": 0}],
            [],
            "Received: ranks[0].intra_op_threads=0: 1 or more.",
        ),
        (
            [{**rank, "memory_nodes": [2**40]}],
            [],
            f"Received: {2**40} in ranks[0].memory_nodes: fr",
        ),
        (
            [{**rank, "memory_policy": "keep"}],
            [],
            "memory_policy='keep': one of 'prefer', 'bind', 'interleave'. Correct it,",
        ),
        ([rank], ["NCCL_DEBUG"], "environment[0]='NCCL_DEBUG': NAME=VALUE. Correct it"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            Plan.from_dict({"ranks": ranks, "environment": environment})
    monkeypatch.delenv("TFCTR_PLAN", raising=False)
    with pytest.raises(ValueError, match="Start the job by `python -m tfctr run`"):
        Plan.from_environment()
    found = Plan((RankPlan(0, 0, (0,), (0,)),))
    monkeypatch.setenv("TFCTR_PLAN", found.to_json(indent=None))
    assert Plan.from_environment() == found


def test_a_drawing_has_ranks_links_and_routes(cube_mesh):
    machine = cube_mesh()
    found = plan(machine)
    text = draw(machine, found)
    assert text == draw(machine, found)
    for rank in range(8):
        assert f'id="rank-{rank}"' in text
    assert text.count("stroke-dasharray") == 24
    assert "<title>route GPU 0 -&gt; GPU 4 -&gt; GPU 5</title>" in text
    assert "<title>gpu:0 - gpu:4: nvlink, 20 GB/s</title>" in text


def test_every_machine_can_be_drawn(machines):
    for machine in machines.values():
        found = plan(machine)
        for text in (draw(machine), draw(machine, found)):
            root = ElementTree.fromstring(text)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
        ids = {item.get("id") for item in root.iter()}
        assert {f"rank-{rank.local_rank}" for rank in found.ranks} <= ids


def test_names_in_a_drawing_are_escaped():
    nic = Nic('a<b>&"c"', numa_node=0)
    machine = Machine((0,), (), (NumaNode(0, (0,), 1),), nics=(nic,))
    root = ElementTree.fromstring(draw(machine, plan(machine)))
    assert any('a<b>&"c"' in (item.text or "") for item in root.iter())
