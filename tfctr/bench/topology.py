"""`bench topology`: training with each rank pinned by the plan, and without.

Jobs of both kinds take turns: one under plain `horovodrun`, where the system moves
threads and memory as it likes, and one under `python -m tfctr run`. What pinning can
gain depends on the machine, so the result says what the plan has pinned at all.
"""

import dataclasses
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from tfctr.bench import machine, report
from tfctr.bench.session import own_versions
from tfctr.bench.summary import median, ratio, ratio_interval
from tfctr.bench.workload import W, Workload
from tfctr.topology import Machine, plan
from tfctr.topology.visible_gpus import usable_gpus

RANKS = (1, 2)
ROUNDS = 5
STEPS, UNTIMED = 12, 4
_SECONDS = 600.0
_CASES = ("free", "pinned")

Found = dict[str, list[dict[str, Any]]]


def run(
    workload: Workload = W,
    ranks: tuple[int, ...] = RANKS,
    rounds: int = ROUNDS,
    steps: int = STEPS,
    wait_seconds: float = machine.WAIT_SECONDS,
) -> dict[str, Any]:
    """Measures jobs with and without pinning, in turns.

    Args:
        workload: The ids of each rank's batches, and the size of the table.
        ranks: Integers. How many processes train together.
        rounds: Integer. How many jobs of each kind.
        steps: Integer. Timed steps of a job.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `rows`, of each number of ranks and kind the median of the
        jobs' median milliseconds of a step; `ratios` and `intervals` of `pinned` over
        `free`; `notes`, what they can tell on this machine; `measured`, `machine` and
        `versions`.

    Raises:
        ValueError: If there is no Horovod, or a job fails.
    """
    if importlib.util.find_spec("horovod") is None:
        raise ValueError(
            "`bench topology` starts jobs by horovodrun. Received: a Python without "
            "Horovod. Run it with .venv/bin/python, after `make setup`."
        )
    wait = machine.wait_for_quiet(wait_seconds)
    meter = machine.LoadMeter()
    found = {number: measure(workload, number, rounds, steps) for number in ranks}
    this = Machine.read()
    return {
        "command": "topology",
        "workload": dataclasses.asdict(workload),
        "rounds": rounds,
        "steps": steps,
        "rows": rows_of(found),
        **ratios_of(found),
        "notes": notes(this, found),
        "measured": found,
        "machine": {
            **machine.describe(),
            "numa_nodes": len(this.numa_nodes),
            "other_cpu_share_before": round(wait.share, 3),
            "other_cpu_share_during": round(meter.share(), 3),
            "waited_seconds": round(wait.seconds, 1),
            "quiet_at_start": wait.is_quiet,
        },
        "versions": own_versions(),
        "absent": [],
    }


def measure(workload: Workload, ranks: int, rounds: int, steps: int) -> Found:
    """Jobs of both kinds in turns; what comes first changes from round to round."""
    found: Found = {case: [] for case in _CASES}
    for turn in range(rounds):
        for case in _CASES if turn % 2 == 0 else _CASES[::-1]:
            found[case].append(run_job(workload, ranks, steps, case == "pinned"))
    return found


def run_job(
    workload: Workload, ranks: int, steps: int, is_pinned: bool
) -> dict[str, Any]:
    """Runs one job, and returns what its rank 0 has measured."""
    options = {
        "workload": dataclasses.asdict(workload),
        "steps": steps,
        "untimed": UNTIMED,
    }
    horovodrun = str(pathlib.Path(sys.executable).with_name("horovodrun"))
    pinned = [sys.executable, "-m", "tfctr", "run", "-np", str(ranks), "--"]
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "found.json"
        command = [
            *(pinned if is_pinned else [horovodrun, "-np", str(ranks)]),
            *(sys.executable, "-m", "tfctr.bench.workers.topology_ranks"),
            *(json.dumps(options), str(file)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        if done.returncode != 0:
            raise ValueError(
                f"A job of {ranks} ranks must end well. Received: exit code "
                f"{done.returncode}. It said:\n{done.stdout}{done.stderr}"
            )
        found: dict[str, Any] = json.loads(file.read_text())
    return found


def job_medians(jobs: list[dict[str, Any]]) -> list[float]:
    """A number for each job: steps of one job are no samples of their own."""
    return [median(job["ms"]) for job in jobs]


def rows_of(found: dict[int, Found]) -> list[dict[str, Any]]:
    """A line for each number of ranks and kind of job."""
    return [
        {
            "ranks": ranks,
            "case": case,
            "ms": median(job_medians(jobs)),
            "jobs": len(jobs),
            "cpus": jobs[0]["cpus"],
            "memory": jobs[0]["memory"],
        }
        for ranks, cases in found.items()
        for case, jobs in cases.items()
    ]


def ratios_of(found: dict[int, Found]) -> dict[str, dict[str, Any]]:
    """Ratios of medians, and their intervals."""
    ratios, intervals = {}, {}
    for ranks, cases in found.items():
        name = f"pinned_over_free/{ranks}_rank{'s' * (ranks != 1)}"
        pinned, free = (job_medians(cases[case]) for case in ("pinned", "free"))
        ratios[name] = ratio(pinned, free)
        intervals[name] = ratio_interval(pinned, free)
    return {"ratios": ratios, "intervals": intervals}


def notes(this: Machine, found: dict[int, Found]) -> list[str]:
    """What the plans pin on this machine, and what hence can make a difference."""
    lines = []
    if sum(1 for node in this.numa_nodes if node.memory_bytes) < 2:
        lines.append(
            "This machine shows one NUMA node: no memory is near or far, and binding "
            "it can change nothing."
        )
    for ranks, cases in found.items():
        chosen = plan(this, ranks, use_gpus=usable_gpus(this), share_cpus=True)
        job = f"{ranks} rank{'s' * (ranks != 1)}"
        if all(set(rank.cpus) == set(this.cpus) for rank in chosen.ranks):
            lines.append(
                f"With {job}, each may run on all {len(this.cpus)} hardware threads in "
                "the plan too: it pins nothing, and a difference is noise or comes of "
                "the numbers of threads."
            )
        if any(one["memory"] == "first_touch" for one in cases["pinned"]):
            lines.append(
                f"With {job}, the system refused to bind memory: it came from where it "
                "was touched first, in both kinds of jobs."
            )
    low_and_high = ratios_of(found)["intervals"]
    for name, (low, high) in low_and_high.items():
        if low <= 1.0 <= high:
            lines.append(f"{name}: no difference beyond the scatter of the jobs.")
    return lines


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    rows = report.columns(
        ["case", "ranks", "median ms", "jobs", "CPUs of a rank", "memory"],
        [
            [
                row["case"],
                str(row["ranks"]),
                f"{row['ms']:.2f}",
                str(row["jobs"]),
                str(row["cpus"]),
                row["memory"] or "-",
            ]
            for row in result["rows"]
        ],
    )
    ratios = report.ratio_lines(result["ratios"], result["intervals"])
    return report.page(result, rows, ratios, result["notes"])
