"""`python -m tfctr run`: horovodrun with each rank pinned."""

import json
import os
import re
import subprocess
import sys

import pytest

from tfctr import cli
from tfctr.topology import Machine, Nvme, Plan, cpu_mask, job, plan

# What a rank sees of itself, in one write, so that lines of ranks do not mix.
PROGRAM = """
import json, os, re
status = open("/proc/self/status").read()
with open("/proc/self/numa_maps") as maps:
    policies = sorted({line.split()[1] for line in maps})
print(json.dumps({
    "rank": int(os.environ["HOROVOD_LOCAL_RANK"]),
    "cpus": re.search(r"Cpus_allowed_list:\\s*(\\S+)", status)[1],
    "policies": policies,
    "flat": os.environ["HOROVOD_HIERARCHICAL_ALLREDUCE"],
    "plan": os.environ["TFCTR_PLAN"],
    "threads": os.environ["TF_NUM_INTRAOP_THREADS"],
    "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
}) + "\\n", end="", flush=True)
"""


@pytest.fixture
def executed(monkeypatch, tmp_path):
    """What `job.run` turns the process into: program, arguments, environment."""
    monkeypatch.setattr(job.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "horovodrun").touch()
    calls = []
    monkeypatch.setattr(job.os, "execve", lambda *arguments: calls.append(arguments))
    return calls


def start(home, *options):
    """A job of two ranks. In `home`, Horovod keeps a cache that jobs cannot share."""
    return subprocess.Popen(
        [sys.executable, "-m", "tfctr", "run", "-np", "2", *options, "--"]
        + [sys.executable, "-c", PROGRAM],
        env={**os.environ, "HOROVOD_HIERARCHICAL_ALLREDUCE": "0", "HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.multiprocess
def test_running_jobs_are_pinned(horovodrun, memory_can_be_bound, tmp_path):
    machine = Machine.read()
    if len(machine.cpus) < 2:
        pytest.skip("this machine has one CPU")
    expected = plan(machine, 2)
    given = [cpu for rank in expected.ranks for cpu in rank.cpus]
    assert len(given) == len(set(given))
    # Without -H the start plans, and with it each machine for itself. Both at once,
    # since starting is what takes long.
    jobs = [start(tmp_path / "plain"), start(tmp_path / "hosts", "-H", "localhost:2")]
    for process in jobs:
        out, error = process.communicate(timeout=240)
        assert process.returncode == 0, error
        lines = [line.partition("{") for line in out.splitlines()]
        seen = [json.loads(b + c) for _, b, c in lines if b]
        assert len(seen) == 2
        seen.sort(key=lambda found: found["rank"])
        for rank, found in zip(expected.ranks, seen, strict=True):
            listed = cpu_mask.from_list(found["cpus"])
            assert cpu_mask.to_cpus(listed) == rank.cpus
            nodes = ",".join(map(str, rank.memory_nodes))
            bound = f"{rank.memory_policy}:{nodes}"
            assert found["policies"] == [bound if memory_can_be_bound else "default"]
            assert Plan.from_json(found["plan"]) == expected
            assert found["threads"] == str(rank.intra_op_threads)
            assert found["gpus"] == ("-1" if rank.gpu is None else str(rank.gpu))


def test_one_machine_gets_its_plan_by_the_environment(executed, monkeypatch):
    monkeypatch.delenv("HOROVOD_TORUS_ALLREDUCE", raising=False)
    job.run(["python", "train.py", "--", "-x"], 1)
    ((program, arguments, env),) = executed
    python = job.sys.executable
    assert arguments == [
        *(program, "-np", "1", python, "-m", "tfctr.topology.launch"),
        *("python", "train.py", "--", "-x"),
    ]
    assert Plan.from_json(env["TFCTR_PLAN"]) == plan(Machine.read(), 1)
    assert env["HOROVOD_TORUS_ALLREDUCE"] == "0"


def test_several_machines_plan_for_themselves(executed, monkeypatch):
    # That of a job around this one.
    monkeypatch.setenv("TFCTR_PLAN", "{}")
    job.run(["train"], 3, "one:2,two:2,three:2")
    ((program, arguments, env),) = executed
    assert arguments[1:5] == ["-np", "3", "-H", "one:2,two:2,three:2"]
    assert "TFCTR_PLAN" not in env
    # One that may be another machine than this.
    job.run(["train"], 2, "one:2")
    assert "TFCTR_PLAN" not in executed[1][2]


def test_a_job_plans_among_the_gpus_left_to_it(executed, monkeypatch, cube_mesh):
    machine = cube_mesh()
    monkeypatch.setattr(Machine, "read", lambda: machine)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    job.run(["train"], 2)
    found = Plan.from_json(executed[0][2]["TFCTR_PLAN"])
    assert [rank.gpu for rank in found.ranks] == [2, 5]


def test_more_ranks_than_threads_are_started(executed):
    number = len(Machine.read().cpus) + 1
    job.run(["train"], number)
    assert len(Plan.from_json(executed[0][2]["TFCTR_PLAN"]).ranks) == number


def test_directories_come_along(executed, tmp_path):
    job.run(["train"], 1, directories=[str(tmp_path)])
    ((_, _, env),) = executed
    assert Plan.from_json(env["TFCTR_PLAN"]).ranks[0].ssd == str(tmp_path)


def test_the_nvme_below_a_directory(monkeypatch, tmp_path):
    machine = Machine((0,), (), plan_node(), nvme=(Nvme("nvme0n1"), Nvme("nvme1n1")))
    disk = "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme1/nvme1n1/nvme1n1p2"
    monkeypatch.setattr(
        job.pathlib.Path, "resolve", lambda self: job.pathlib.Path(disk)
    )
    assert job.nvme_below(str(tmp_path), machine) == "nvme1n1"
    monkeypatch.undo()
    assert job.nvme_below("/proc", machine) is None


def plan_node():
    return Machine.read().numa_nodes[:1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-np", "0"], "-np must be a positive number of ranks. Received: -np 0."),
        (["-np", "2", "-H", "one"], "-H must list hosts .* Received: -H one."),
        (["-np", "2", "-H", "one:²"], "-H must list hosts .* Received: -H one:²."),
        (["-np", "1", "--ssd", "/no/dir"], "Received: --ssd /no/dir, which is none."),
        (["-np", "1", "--ssd", "/proc/stat"], "must name a directory on an SSD "),
        (["-np", "3", "-H", "one:2"], "places for all 3 ranks. .*:2, 1 too few."),
        (
            ["-np", "2", "-H", "a:1,b:1", "--ssd", "/"],
            "Received: -H a:1,b:1 --ssd /. Leave",
        ),
    ],
)
def test_wrong_options_are_told(executed, options, message, capsys):
    assert cli.main(["run", *options, "--", "train"]) == 2
    assert executed == []
    error = capsys.readouterr().err
    assert re.search(message, error), error


def test_a_missing_horovod_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(job.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="Horovod. In the repository of tfctr, `make"):
        job.run(["train"], 1)
