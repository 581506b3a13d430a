"""`bench horovod`: what a step costs on several ranks, in time and in bytes sent.

Sharded tables beside the all-gather that Horovod makes of `IndexedSlices`, and the
dense weights averaged in each step beside k-step merges. All ranks run on this machine,
and share its cores: the milliseconds are those of so many processes, the bytes are what
they send each other over the loopback interface, headers included.
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

RANKS = (1, 2, 4)
KS = (1, 4, 16)
ROUNDS = 7
SPARSE_STEPS, DENSE_STEPS = 5, 32  # A multiple of each k.
_SECONDS = 600.0

Found = dict[str, list[dict[str, float]]]


def run(
    workload: Workload = W,
    ranks: tuple[int, ...] = RANKS,
    rounds: int = ROUNDS,
    wait_seconds: float = machine.WAIT_SECONDS,
) -> dict[str, Any]:
    """Measures steps on several numbers of ranks, one after the other.

    Args:
        workload: The ids of each rank's batches, and the size of the table.
        ranks: Integers. How many processes train together.
        rounds: Integer. How often each case is measured.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `rows`, of each number of ranks and case the median
        milliseconds and bytes of a step, of all ranks together; `ratios` and
        `intervals` of `sharded` over `all_gather` and of `sharded_float16` over
        `sharded`, in time and bytes; `machine` and `versions`.

    Raises:
        ValueError: If there is no Horovod, or a job fails.
    """
    if importlib.util.find_spec("horovod") is None:
        raise ValueError(
            "`bench horovod` starts jobs by horovodrun. Received: a Python without "
            "Horovod. Run it with .venv/bin/python, after `make setup`."
        )
    wait = machine.wait_for_quiet(wait_seconds)
    meter = machine.LoadMeter()
    found = {number: measure(workload, number, rounds) for number in ranks}
    return {
        "command": "horovod",
        "workload": dataclasses.asdict(workload),
        "rounds": rounds,
        "rows": rows_of(found),
        **ratios_of({number: of for number, of in found.items() if number > 1}),
        "measured": found,
        "machine": {
            **machine.describe(),
            "other_cpu_share_before": round(wait.share, 3),
            "other_cpu_share_during": round(meter.share(), 3),
            "waited_seconds": round(wait.seconds, 1),
            "quiet_at_start": wait.is_quiet,
        },
        "versions": own_versions(),
        "absent": [],
    }


def measure(workload: Workload, ranks: int, rounds: int) -> Found:
    """Runs one job, and returns what its rank 0 has measured."""
    options = {
        "workload": dataclasses.asdict(workload),
        "threads": 2,
        "rounds": rounds,
        "sparse_steps": SPARSE_STEPS,
        "dense_steps": DENSE_STEPS,
        "ks": KS,
    }
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "found.json"
        command = [
            str(pathlib.Path(sys.executable).with_name("horovodrun")),
            *("-np", str(ranks), sys.executable),
            *("-m", "tfctr.bench.workers.horovod_ranks", json.dumps(options)),
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        if done.returncode != 0:
            raise ValueError(
                f"A job of {ranks} ranks must end well. Received: exit code "
                f"{done.returncode}. It said:\n{done.stdout}{done.stderr}"
            )
        found: Found = json.loads(file.read_text())
    return found


def rows_of(found: dict[int, Found]) -> list[dict[str, Any]]:
    """A line for each number of ranks and case."""
    return [
        {
            "ranks": ranks,
            "case": case,
            "ms": median([one["ms"] for one in measured]),
            "bytes": median([one["bytes"] for one in measured]),
        }
        for ranks, cases in found.items()
        for case, measured in cases.items()
    ]


def ratios_of(found: dict[int, Found]) -> dict[str, dict[str, Any]]:
    """Ratios of medians, and their intervals."""
    ratios, intervals = {}, {}
    for ranks, cases in found.items():
        pairs = [("sharded", "all_gather"), ("sharded_float16", "sharded")]
        pairs += [(case, "every_step") for case in cases if "/" in case]
        for first, second in pairs:
            for what in ("ms", "bytes"):
                name = f"{first}_over_{second}/{what}/{ranks}_ranks"
                over = [one[what] for one in cases[first]]
                under = [one[what] for one in cases[second]]
                ratios[name] = ratio(over, under)
                intervals[name] = ratio_interval(over, under)
    return {"ratios": ratios, "intervals": intervals}


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    rows = report.columns(
        ["case", "ranks", "median ms", "MB sent"],
        [
            [
                row["case"],
                str(row["ranks"]),
                f"{row['ms']:.2f}",
                f"{row['bytes'] / 1e6:.3f}",
            ]
            for row in sorted(result["rows"], key=lambda row: row["ranks"])
        ],
    )
    ratios = report.ratio_lines(result["ratios"], result["intervals"])
    return report.page(result, rows, ratios)
