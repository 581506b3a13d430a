"""A job over two hosts: what the ranks exchange goes over the cable between them."""

import os
import pathlib
import time

import psutil
import pytest
import tensorflow as tf

from tfctr import distributed
from tfctr.distributed import engine

NUMBERS = 1_000_000


def scenarios():
    """What one rank sees, and how many bytes each exchange has sent from its host."""
    rank, ranks = distributed.rank(), distributed.size()
    found = {
        "ids": [rank, ranks, distributed.local_rank()],
        "network": os.readlink("/proc/self/ns/net"),
        "path": os.environ.get("PYTHONPATH", ""),
    }
    engine.barrier("begin")
    before = _sent()
    [total] = engine.all_reduce([tf.fill([NUMBERS], 1.0 + rank)], "sum")
    found["sum"] = [float(tf.reduce_min(total)), float(tf.reduce_max(total))]
    # A rank may have its sums while the last of what it sends is still in its socket.
    # The other enters the barrier when it has received that.
    engine.barrier("between")
    found["sum bytes"] = _sent() - before
    before = _sent()
    sizes = [NUMBERS // 4, NUMBERS] if rank == 0 else [NUMBERS // 2, 0]
    numbers = tf.fill([sum(sizes)], float(rank))
    received, counts = engine.all_to_all(numbers, tf.constant(sizes), "exchange")
    found["received"] = [counts.numpy().tolist(), float(tf.reduce_sum(received))]
    engine.barrier("end")
    found["exchange bytes"] = _sent() - before
    return found


def _sent():
    [line] = [
        line
        for line in pathlib.Path("/proc/self/net/dev").read_text().splitlines()
        if "eth0:" in line
    ]
    return int(line.split()[9])  # Of the columns of proc(5): bytes transmitted.


@pytest.fixture(scope="module")
def found(run_ranks, two_hosts):
    before = two_hosts.bytes_sent(0)
    found = run_ranks(2, __file__, "scenarios", hosts=two_hosts)
    found[0]["job bytes"] = two_hosts.bytes_sent(0) - before
    return found


@pytest.mark.multiprocess
def test_each_rank_is_on_a_host_of_its_own(found):
    assert [of_rank["ids"] for of_rank in found] == [[0, 2, 0], [1, 2, 0]]
    networks = {os.readlink("/proc/self/ns/net"), *(rank["network"] for rank in found)}
    assert len(networks) == 3
    assert found[1]["path"] == os.environ.get("PYTHONPATH", "")


@pytest.mark.multiprocess
def test_sums_go_over_the_cable(found):
    for of_rank in found:
        assert of_rank["sum"] == [3.0, 3.0]
        # Of two ranks, each sends half of the numbers, and then half of the sums.
        assert 4 * NUMBERS <= of_rank["sum bytes"] < 1.2 * 4 * NUMBERS


@pytest.mark.multiprocess
def test_rows_go_over_the_cable_to_the_rank_that_is_meant(found):
    # What a rank sends to itself stays there.
    sent = [4 * NUMBERS, 4 * NUMBERS // 2]
    received = [
        [[NUMBERS // 4, NUMBERS // 2], float(NUMBERS // 2)],
        [[NUMBERS, 0], 0.0],
    ]
    for rank, of_rank in enumerate(found):
        assert of_rank["received"] == received[rank]
        assert sent[rank] <= of_rank["exchange bytes"] < 1.2 * sent[rank]
    assert found[0]["job bytes"] >= 8 * NUMBERS


def sleep_on_the_other_host():
    """Rank 0 fails while the other does not look at its neighbours."""
    engine.barrier("begin")
    if distributed.rank() == 0:
        raise ValueError("no more data")
    time.sleep(600)


@pytest.mark.multiprocess
def test_a_job_that_fails_leaves_nothing_on_the_other_host(run_ranks, two_hosts):
    before = set(two_hosts.processes(1))
    text = run_ranks(
        2, __file__, "sleep_on_the_other_host", fails=True, hosts=two_hosts
    )
    assert "ValueError: no more data" in text
    left = set(two_hosts.processes(1)) - before
    _, alive = psutil.wait_procs(left, timeout=60)
    assert not alive
