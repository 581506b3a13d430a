"""The collectives: what each rank gets, against what the ranks have sent."""

import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from tfctr import distributed
from tfctr.distributed import engine

RANKS = 3


def scenarios():
    """What one rank sees. Rank r sends numbers that only it has."""
    rank, ranks = distributed.rank(), distributed.size()
    found = {"ids": [rank, ranks, distributed.local_rank(), distributed.is_main()]}
    mixed = [
        tf.constant([1.0 + rank, 2.0]),
        tf.constant(rank, tf.float64),
        tf.fill((2, 1), 0.5),
    ]
    for dtype in (None, "float16", "bfloat16"):
        for average in (False, True):
            sums = engine.all_reduce(mixed, f"sums.{average}", average, dtype)
            found[f"reduce {dtype} {average}"] = [
                [total.dtype.name, total.numpy().tolist()] for total in sums
            ]
    found["gather"] = (
        engine.all_gather(tf.fill((rank, 2), rank), "gather").numpy().tolist()
    )
    # To rank d: d + 1 numbers, or none from rank 1.
    sizes = np.arange(1, ranks + 1) * (rank != 1)
    numbers = tf.constant(
        [100 * rank + d for d in range(ranks) for _ in range(sizes[d])], tf.int64
    )
    received = engine.all_to_all(numbers, tf.constant(sizes, tf.int32), "exchange")
    found["exchange"] = [part.numpy().tolist() for part in received]
    found["broadcast"] = int(engine.broadcast(tf.constant(rank + 5), "number"))
    found["objects"] = engine.gather_objects({"é": [rank] * rank}, "objects")

    @tf.function
    def every_second(steps):
        total = tf.constant(0.0)
        for step in tf.range(steps):
            if step % 2 == 0:
                [sum_of_ranks] = engine.all_reduce([tf.ones([])], "in.a.branch")
                total += sum_of_ranks
        return total

    found["graph"] = float(every_second(tf.constant(5)))
    engine.barrier("end")
    return found


@pytest.fixture(scope="module")
def found(run_ranks):
    return run_ranks(RANKS, __file__, "scenarios")


@pytest.mark.multiprocess
def test_each_rank_knows_its_place(found):
    assert [of_rank["ids"] for of_rank in found] == [
        [rank, RANKS, rank, rank == 0] for rank in range(RANKS)
    ]


@pytest.mark.multiprocess
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
@pytest.mark.parametrize("average", [False, True])
def test_sums_of_several_shapes_and_dtypes(found, dtype, average):
    # All are small enough for any of the dtypes.
    scale = 1 / RANKS if average else 1.0
    expected = [
        ["float32", [6.0 * scale, 6.0 * scale]],
        ["float64", 3.0 * scale],
        ["float32", [[1.5 * scale], [1.5 * scale]]],
    ]
    for of_rank in found:
        assert of_rank[f"reduce {dtype} {average}"] == expected


@pytest.mark.multiprocess
def test_rows_of_all_ranks_come_in_the_order_of_the_ranks(found):
    for of_rank in found:
        assert of_rank["gather"] == [[1, 1], [2, 2], [2, 2]]


@pytest.mark.multiprocess
def test_each_rank_gets_what_was_sent_to_it(found):
    for rank, of_rank in enumerate(found):
        count = rank + 1
        numbers, sizes = of_rank["exchange"]
        assert numbers == [rank] * count + [200 + rank] * count
        assert sizes == [count, 0, count]


@pytest.mark.multiprocess
def test_one_rank_tells_all(found):
    assert [of_rank["broadcast"] for of_rank in found] == [5] * RANKS
    everything = [{"é": [rank] * rank} for rank in range(RANKS)]
    assert [of_rank["objects"] for of_rank in found] == [everything] * RANKS


@pytest.mark.multiprocess
def test_collectives_stand_in_loops_and_branches_of_graphs(found):
    assert [of_rank["graph"] for of_rank in found] == [3.0 * RANKS] * RANKS


def test_alone_nothing_is_sent():
    tensor = tf.constant([1.0, 2.0])
    assert (distributed.rank(), distributed.size(), distributed.is_main()) == (
        0,
        1,
        True,
    )
    assert engine.all_reduce([tensor], "a", average=True)[0] is tensor
    assert engine.all_gather(tensor, "a") is tensor
    assert engine.broadcast(tensor, "a") is tensor
    assert engine.all_to_all(tensor, [2], "a")[0] is tensor
    assert engine.gather_objects(3, "a") == [3]


def test_alone_horovod_is_not_imported():
    # In a process of its own: TFRA, which other tests import, imports it too.
    code = (
        "import sys, tensorflow as tf; from tfctr.distributed import engine, init; "
        "init(); engine.all_reduce([tf.ones([2])], 'a'); engine.barrier('b'); "
        "sys.exit('horovod' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_several_processes_without_horovod_are_told_how_to_get_it(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").write_text("raise ImportError('none here')")
    process = subprocess.run(
        [sys.executable, "-c", "from tfctr import distributed; distributed.init()"],
        env={**os.environ, "HOROVOD_SIZE": "2", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert process.returncode != 0
    assert "Received: 2 processes, and a Python without Horovod" in process.stderr
    assert "pip install --no-build-isolation horovod==0.28.1" in process.stderr


def test_a_horovod_that_does_not_know_of_the_others_is_refused(monkeypatch):
    """As one built for MPI alone, or for Gloo alone, under the other's launcher."""
    alone = types.SimpleNamespace(init=lambda: None, size=lambda: 1)
    monkeypatch.setitem(sys.modules, "horovod", types.ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", alone)
    message = (
        "2 processes were started to train together. Received: a Horovod that sees 1, "
        "since it is not built for their launcher. Start them with horovodrun."
    )
    with monkeypatch.context() as context:
        context.setattr(os, "environ", {**os.environ, "OMPI_COMM_WORLD_SIZE": "2"})
        with pytest.raises(RuntimeError, match=re.escape(message)):
            distributed.init()
