"""Pinning: seen by /proc and TensorFlow in processes of their own."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from tfctr.topology import (
    Gpu,
    Machine,
    NumaNode,
    Placement,
    Plan,
    RankPlan,
    apply,
    launch,
    memory_policy,
    pinning,
    plan,
    visible_gpus,
)

ROOT = pathlib.Path(__file__).resolve().parents[3]
CPU = min(os.sched_getaffinity(0))
RANK = RankPlan(0, 0, (0,), (CPU,), memory_policy="bind", memory_nodes=(0,))

# What a process sees of itself. Memory that it maps before it is pinned keeps its
# policy.
SEE = """
import json, mmap, os, sys
def see():
    with mmap.mmap(-1, 1 << 20) as memory:
        memory.write(b"x" * (1 << 20))
        maps = open("/proc/self/numa_maps").read().splitlines()
    return {
        "cpus": sorted({
            tuple(os.sched_getaffinity(int(thread)))
            for thread in os.listdir("/proc/self/task")
        }),
        "policies": sorted({line.split()[1] for line in maps}),
        "intra_op": os.environ["TF_NUM_INTRAOP_THREADS"],
    }
"""

TWO_NODES = (
    SEE
    + """
import tensorflow as tf
from tfctr.topology import Plan, RankPlan, apply
cpu = min(os.sched_getaffinity(0))
rank = RankPlan(
    0, 0, (0, 3), (cpu,), 2, 3, memory_policy="bind", memory_nodes=(0,),
    devices=("/CPU:0", "/CPU:1"),
)
plan = Plan((rank,))
placement = apply(plan)
again = apply(plan)
with placement.scope(numa_node=3):
    far = tf.random.uniform((64, 64)) @ tf.random.uniform((64, 64))
with placement.scope():
    near = tf.constant(1.0) + 1
try:
    apply(Plan((RankPlan(0, 0, (0,), (cpu,), intra_op_threads=7),)))
    error = ""
except RuntimeError as raised:
    error = str(raised)
print(json.dumps({
    **see(),
    "again": again == placement,
    "devices": len(tf.config.list_logical_devices("CPU")),
    "far": far.device, "near": near.device,
    "threads": tf.config.threading.get_inter_op_parallelism_threads(),
    "policy": placement.memory_policy,
    "error": error,
    "environment": os.environ["TF_NUM_INTRAOP_THREADS"],
}))
"""
)


def run(*arguments, **env):
    """The last line that a program prints, read as JSON."""
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_a_simulated_machine_of_two_nodes_has_two_logical_cpus(memory_can_be_bound):
    seen = run("-c", TWO_NODES)
    assert seen["devices"] == 2
    assert seen["far"].endswith("CPU:1")
    assert seen["near"].endswith("CPU:0")
    assert seen["threads"] == 3
    # All threads of TensorFlow too, which has started by now.
    assert seen["cpus"] == [[CPU]]
    assert seen["policy"] == ("bind" if memory_can_be_bound else "first_touch")
    assert ("bind:0" in seen["policies"]) == memory_can_be_bound
    # The same plan again changes nothing; another one comes too late, and leaves the
    # environment as it was.
    assert seen["again"]
    assert seen["error"].startswith("`tfctr.topology.apply` must come before TensorFl")
    assert "Call it before the first tensor" in seen["error"]
    assert seen["environment"] == "2"


def test_the_launcher_pins_before_the_program_starts(memory_can_be_bound):
    program = f"{SEE}\nprint(json.dumps(see()))"
    seen = run(
        *("-m", "tfctr.topology.launch", sys.executable, "-c", program),
        TFCTR_PLAN=Plan((RANK,)).to_json(indent=None),
    )
    assert seen["cpus"] == [[CPU]]
    assert seen["intra_op"] == "1"
    assert seen["policies"] == ["bind:0" if memory_can_be_bound else "default"]


def test_machines_of_a_job_plan_each_for_themselves(monkeypatch, two_sockets):
    """The same job on two machines that differ, seen from rank 1 of each."""
    monkeypatch.delenv("TFCTR_PLAN", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    sizes = {"LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_SIZE": "2"}
    found = []
    for cores in (4, 16):
        machine = two_sockets(cores)
        monkeypatch.setattr(Machine, "read", lambda machine=machine: machine)
        monkeypatch.setattr(
            pinning,
            "pin",
            lambda rank: found.append(rank.cpus) or Placement(rank, "bind"),
        )
        environment = {**os.environ, **{f"HOROVOD_{k}": v for k, v in sizes.items()}}
        monkeypatch.setattr(launch.os, "environ", environment)
        monkeypatch.setattr(launch.os, "execvp", lambda program, arguments: None)
        launch.main(["train"])
        made = Plan.from_json(environment["TFCTR_PLAN"])
        assert made == plan(machine, 2, num_hosts=2, share_cpus=True)
        monkeypatch.undo()
    assert found == [(2, 3, 6, 7), tuple([*range(8, 16), *range(24, 32)])]


@pytest.mark.parametrize(
    ("local_rank", "note"),
    [
        (0, "tfctr: 5 ranks share 4 hardware threads: each waits for the others, and "),
        (1, ""),
    ],
)
def test_ranks_that_share_cpus_are_told_once(
    monkeypatch, two_sockets, capsys, local_rank, note
):
    shared = plan(two_sockets(2), 5, share_cpus=True)
    environment = {
        "TFCTR_PLAN": shared.to_json(),
        "HOROVOD_LOCAL_RANK": str(local_rank),
    }
    monkeypatch.setattr(launch.os, "environ", environment)
    monkeypatch.setattr(pinning, "pin", lambda rank: Placement(rank, "bind"))
    monkeypatch.setattr(launch.os, "execvp", lambda program, arguments: None)
    launch.main(["train"])
    error = capsys.readouterr().err
    assert error.startswith(note)
    assert bool(error) == bool(note)


def test_the_launcher_plans_where_no_plan_came_along():
    program = "import os, json; print(json.dumps(os.environ['TFCTR_PLAN']))"
    seen = run(
        *("-m", "tfctr.topology.launch", sys.executable, "-c", program),
        HOROVOD_LOCAL_RANK="1",
        HOROVOD_LOCAL_SIZE="2",
        HOROVOD_CROSS_SIZE="1",
    )
    assert Plan.from_json(seen) == plan(Machine.read(), 2, share_cpus=True)


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        ((), {}, "The launcher expects a program. Received: none."),
        (("true",), {"TFCTR_PLAN": "{"}, "A plan must be the JSON"),
        (
            ("no-such-program",),
            {},
            "as a shell finds it. Received: no-such-program (No such file",
        ),
    ],
)
def test_the_launcher_says_what_is_wrong(arguments, env, message):
    process = subprocess.run(
        [sys.executable, "-m", "tfctr.topology.launch", *arguments],
        cwd=ROOT,
        env={**os.environ, "TFCTR_PLAN": Plan((RANK,)).to_json(), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 2
    assert message in process.stderr
    assert "Traceback" not in process.stderr


def test_the_launcher_outside_of_a_job_says_so(monkeypatch):
    monkeypatch.delenv("TFCTR_PLAN", raising=False)
    monkeypatch.delenv("HOROVOD_LOCAL_SIZE", raising=False)
    with pytest.raises(ValueError, match="Start the job by `python -m tfctr run`"):
        launch.main(["true"])


def test_the_rank_is_that_of_the_launcher(monkeypatch):
    for name in ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    two = Plan((RANK, RankPlan(1, 0, (0,), (CPU,))))
    assert pinning.rank_of(Plan((RANK,))) is RANK
    assert pinning.rank_of(two, 1).local_rank == 1
    with pytest.raises(ValueError, match="one of the 2 ranks .* Received: none"):
        pinning.rank_of(two)
    with pytest.raises(ValueError, match="one of the 1 ranks .* Received: -1"):
        pinning.rank_of(Plan((RANK,)), -1)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    assert pinning.rank_of(two).local_rank == 1
    monkeypatch.setenv("HOROVOD_LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="one of the 2 ranks .* Received: 2"):
        pinning.rank_of(two)


def test_the_environment_has_the_gpu_and_leaves_what_is_set(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("HOROVOD_HIERARCHICAL_ALLREDUCE", "1")
    rank = RankPlan(0, 0, (0,), (0,), 4, 8, gpu=3, shared_gpu=True)
    settings = (
        "HOROVOD_HIERARCHICAL_ALLREDUCE=0",
        "HOROVOD_TORUS_ALLREDUCE=0",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
    )
    assert pinning.environment(Plan((rank,), environment=settings), rank) == {
        "HOROVOD_TORUS_ALLREDUCE": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "3",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "8",
    }
    assert pinning.environment(Plan((RANK,)), RANK)["CUDA_VISIBLE_DEVICES"] == "-1"
    # Of those that a batch system has left, the rank gets its own.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    found = pinning.environment(Plan((rank,)), rank)
    assert found["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    message = r"leave GPU 3.* Received: CUDA_VISIBLE_DEVICES=0,1. Plan .*=\(0, 1\)"
    with pytest.raises(ValueError, match=message):
        pinning.environment(Plan((rank,)), rank)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("2,3", (2, 3)),
        ("", ()),
        ("-1", ()),
        ("1,-1,0", (1,)),
        ("0,7", (0,)),
        ("0,7,1", (0,)),
    ],
)
def test_gpus_that_the_environment_hides_are_not_used(monkeypatch, text, ids):
    gpus = tuple(Gpu(i, f"0000:0{i}:00.0") for i in range(4))
    machine = Machine((0,), (), (NumaNode(0, (0,), 1),), gpus=gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert visible_gpus.usable_gpus(machine) == ids
    assert [rank.gpu for rank in plan(machine, 1, use_gpus=ids).ranks] == [
        ids[0] if ids else None
    ]


def test_gpus_by_other_names_are_told(monkeypatch):
    node = NumaNode(0, (0,), 1)
    machine = Machine((0,), (), (node,), gpus=(Gpu(0, "0000:01:00.0"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus.usable_gpus(machine) is True
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a56a4bc")
    with pytest.raises(ValueError, match="Received: CUDA_VISIBLE_DEVICES=GPU-8a56a4bc"):
        visible_gpus.usable_gpus(machine)
    assert visible_gpus.usable_gpus(Machine((0,), (), (node,))) is True


def test_tables_go_to_the_node_of_the_rank():
    assert Placement(RANK, "bind").numa_node == 0
    far = RankPlan(0, 3, (3,), (CPU,), memory_nodes=(1,))
    assert Placement(far, "prefer").numa_node == 1
    assert Placement(RankPlan(0, 3, (3,), (CPU,)), "first_touch").numa_node == 3
    spread = RankPlan(0, 0, (0, 1), (CPU,), memory_nodes=(0, 1))
    assert Placement(spread, "interleave").numa_node is None


def test_cpus_that_are_not_there_are_told():
    missing = RankPlan(0, 0, (0,), (4000,))
    with pytest.raises(ValueError, match="CPUs 4000. Received: Invalid argument. Plan"):
        pinning.pin(missing)


def test_where_memory_cannot_be_bound_the_first_touch_decides(monkeypatch):
    monkeypatch.setattr(pinning.os, "sched_setaffinity", lambda thread, cpus: None)

    def refuse(policy, nodes):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(memory_policy, "set_policy", refuse)
    placement = pinning.pin(RANK)
    assert placement.memory_policy == "first_touch"
    assert "the system refuses 'bind'" in placement.notes[0]
    assert "the capability SYS_NICE" in placement.notes[0]


def test_policies_of_unknown_processors_and_nodes_are_refused(monkeypatch):
    # A node that is not there; no process changes by it.
    with pytest.raises(OSError, match="Invalid argument|not permitted|not implemented"):
        memory_policy.set_policy("bind", [1000])
    monkeypatch.setattr(memory_policy.platform, "machine", lambda: "m68k")
    with pytest.raises(OSError, match="no policies are known on m68k"):
        memory_policy.set_policy("bind", [0])


def test_kernels_without_huge_pages_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(pinning.os, "sched_setaffinity", lambda thread, cpus: None)
    monkeypatch.setattr(memory_policy, "set_policy", lambda policy, nodes: None)
    for text, number in (("always madvise [never]", 1), ("always [madvise] never", 0)):
        (tmp_path / "enabled").write_text(text)
        monkeypatch.setattr(pinning, "_HUGE_PAGES", tmp_path / "enabled")
        assert len(pinning.pin(RANK).notes) == number
    monkeypatch.setattr(pinning, "_HUGE_PAGES", tmp_path / "missing")
    assert pinning.pin(RANK).notes == ()


def test_a_rank_sees_its_gpu_as_the_first():
    rank = RankPlan(0, 1, (1,), (0,), gpu=3, devices=("/GPU:3",))
    assert Placement(rank, "bind").device() == "/GPU:0"
    assert Placement(RANK, "bind").device(numa_node=0) == "/CPU:0"
    with pytest.raises(
        ValueError, match="must be one of \\[1\\].*Received: numa_node=0"
    ):
        Placement(rank, "bind").device(numa_node=0)


class FakeConfig:
    """`tf.config` of a machine with GPUs; it remembers what is visible."""

    def __init__(self, gpus):
        self.gpus = gpus
        self.visible = None
        self.threading = types.SimpleNamespace(
            set_intra_op_parallelism_threads=lambda number: None,
            set_inter_op_parallelism_threads=lambda number: None,
        )

    def list_physical_devices(self, kind):
        return self.gpus

    def get_visible_devices(self, kind):
        return self.gpus if self.visible is None else self.visible

    def set_visible_devices(self, devices, kind):
        self.visible = devices


@pytest.mark.parametrize(
    ("gpu", "given", "found", "visible"),
    [
        (None, None, ["a", "b"], []),
        # A rank without a GPU does not mind how others are named.
        (None, "GPU-8a56a4bc", ["a", "b"], []),
        # CUDA has read the environment, and sees the one.
        (1, None, ["b"], None),
        # CUDA had started before.
        (1, None, ["a", "b"], ["b"]),
        # The same, and it sees those that were left to it.
        (3, "2,3", ["c", "d"], ["d"]),
    ],
)
def test_tensorflow_sees_the_gpu_of_the_rank(monkeypatch, gpu, given, found, visible):
    config = FakeConfig(found)
    fake = types.SimpleNamespace(config=config)
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    monkeypatch.setattr(pinning, "pin", lambda rank: Placement(rank, "bind"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pinning.os, "environ", dict(os.environ))
    if given is not None:
        pinning.os.environ["CUDA_VISIBLE_DEVICES"] = given
    for _ in range(2):
        apply(Plan((RankPlan(0, 0, (0,), (CPU,), gpu=gpu),)))
        assert config.visible == visible


def test_a_gpu_that_tensorflow_does_not_see_is_told(monkeypatch):
    fake = types.SimpleNamespace(config=FakeConfig([]))
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "5")
    with pytest.raises(
        ValueError, match="Rank 0 must find GPU 1. Received: a TensorFl"
    ):
        apply(Plan((RankPlan(0, 0, (0,), (CPU,), gpu=1),)))
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "5"
