"""Best ways between GPUs."""

import dataclasses
import itertools

from tfctr.topology import Gpu, Nic, NvlinkPeer, collectives, links, routes

# The links that a DGX-1 with V100 has twice.
DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))


def relayed(machine):
    return {
        (route.source, route.target): route.relays
        for route in routes(machine)
        if route.relays
    }


def closed_formula():
    """The table of the cube mesh: algorithms.md, section 8."""
    return {
        (source, target): ((source + 4) % 8,)
        for source, target in itertools.permutations(range(8), 2)
        if source // 4 != target // 4 and (source + 4) % 8 != target
    }


def test_the_cube_mesh_relays_24_of_56_pairs(cube_mesh):
    expected = closed_formula()
    assert len(expected) == 24
    assert len(routes(cube_mesh())) == 56
    assert relayed(cube_mesh()) == expected


def test_double_links_relay_the_same_pairs_by_the_faster_way(cube_mesh):
    found = relayed(cube_mesh(DOUBLE))
    assert found.keys() == closed_formula().keys()
    # 2 -> 6 is a single link and 0 -> 4 a double one; both ways have two links.
    assert found[2, 4] == (0,)
    assert found[0, 6] == (4,)


def test_a_device_of_no_single_node_is_no_bridge_between_nodes(two_sockets):
    gpus = tuple(Gpu(i, f"0000:0{i}:00.0", numa_node=i) for i in range(2))
    machine = two_sockets(4, gpus)
    far = tuple(
        dataclasses.replace(node, distances=row)
        for node, row in zip(machine.numa_nodes, ((10, 80), (80, 10)), strict=True)
    )
    machine = dataclasses.replace(machine, numa_nodes=far)
    path = ("pci0000:99", "0000:99:00.0")
    for nic in (Nic("eth0"), Nic("eth0", (), path[1], path)):
        found = routes(dataclasses.replace(machine, nics=(nic,)))
        assert found == routes(machine)
    assert {route.bytes_per_second for route in found} == {5 * 10**9}


def test_relays_are_the_cheapest_of_all_ways(cube_mesh):
    machine = cube_mesh(DOUBLE)
    cost = {}
    for link in links(machine):
        cost[link.ends] = cost[link.ends[::-1]] = 1 / link.bytes_per_second
    places = sorted({place for ends in cost for place in ends})
    best = {
        pair: 0 if pair[0] == pair[1] else cost.get(pair, float("inf"))
        for pair in itertools.product(places, repeat=2)
    }
    # Floyd and Warshall's.
    for middle, one, other in itertools.product(places, repeat=3):
        way = best[one, middle] + best[middle, other]
        best[one, other] = min(best[one, other], way)
    for route in routes(machine):
        if not route.through_host:
            stops = (route.source, *route.relays, route.target)
            pairs = itertools.pairwise(f"gpu:{stop}" for stop in stops)
            total = sum(cost[pair] for pair in pairs)
            assert abs(total / best[f"gpu:{stops[0]}", f"gpu:{stops[-1]}"] - 1) < 1e-9
    assert not any(route.through_host for route in routes(machine))


def test_a_switch_needs_no_relay(machines):
    found = routes(machines["nvidiaDGX2.xml"])
    assert len(found) == 16 * 15
    assert not any(route.relays or route.through_host for route in found)
    assert {route.bytes_per_second for route in found} == {150 * 10**9}


def test_without_a_way_over_nvlink_data_goes_through_the_host(machines):
    found = {
        (x.source, x.target): x for x in routes(machines["power8gpudistances.xml"])
    }
    assert not found[0, 1].through_host
    assert found[0, 2].through_host
    assert found[0, 2].relays == ()
    # The link of two sockets at distance 40 is the narrowest.
    assert found[0, 2].bytes_per_second == 10 * 10**9


def test_gpus_below_one_switch_of_pci_stay_off_the_host(two_sockets):
    path = ("pci0000:00", "0000:01:00.0")
    gpus = tuple(
        Gpu(i, f"0000:0{i + 2}:00.0", (*path, f"0000:0{i + 2}:00.0"), numa_node=0)
        for i in range(2)
    )
    assert not any(route.through_host for route in routes(two_sockets(gpus=gpus)))


def test_links_name_both_ends_once(cube_mesh):
    machine = dataclasses.replace(cube_mesh(), nics=(Nic("ib0", numa_node=1),))
    found = [frozenset(link.ends) for link in links(machine)]
    assert len(found) == len(set(found))
    assert frozenset(("gpu:0", "gpu:4")) in found
    assert frozenset(("nic:ib0", "node:1")) in found
    assert sum(link.kind == "nvlink" for link in links(machine)) == 16


def test_links_to_gpus_out_of_sight_are_left_out(two_sockets):
    gpu = Gpu(
        0,
        "0000:05:00.0",
        numa_node=0,
        nvlink_peers=(NvlinkPeer("gpu", "0000:06:00.0", 10**9),),
    )
    found = links(two_sockets(gpus=(gpu,)))
    assert [link.kind for link in found] == ["memory", "pcie"]


def test_several_machines_sum_in_two_levels_where_nvlink_joins_their_gpus(cube_mesh):
    found = routes(cube_mesh())
    name, settings = collectives.choose(found, range(8), num_hosts=2)
    assert name == "hierarchical"
    assert settings == (
        "HOROVOD_HIERARCHICAL_ALLREDUCE=1",
        "HOROVOD_TORUS_ALLREDUCE=1",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "NCCL_NVB_DISABLE=0",
    )
    assert collectives.choose(found, range(8), num_hosts=1)[0] == "flat"
    # One rank; two ranks on one GPU.
    assert collectives.choose(found, [0], num_hosts=2)[0] == "flat"
    assert collectives.choose(found, [0, 0], num_hosts=2)[0] == "flat"


def test_machines_whose_gpus_talk_through_the_host_sum_flat(machines):
    found = routes(machines["power8gpudistances.xml"])
    assert collectives.choose(found, range(4), num_hosts=2)[0] == "flat"
    assert collectives.choose(found, [0, 1], num_hosts=2)[0] == "hierarchical"
    assert collectives.choose((), [None, None], num_hosts=2) == (
        "flat",
        ("HOROVOD_HIERARCHICAL_ALLREDUCE=0", "HOROVOD_TORUS_ALLREDUCE=0"),
    )
