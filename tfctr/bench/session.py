"""`Session`: one run of a benchmark: the quiet machine, the time limit, the peers."""

import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

import tfctr
from tfctr.bench import machine
from tfctr.bench.rounds import Deadline, Measurement, Turns, measure
from tfctr.bench.systems import ROOT, System
from tfctr.bench.worker import Worker, WorkerFailed
from tfctr.bench.workers.options import Options

# What every command must end within, on two cores, waiting included.
SECONDS = 55.0

Request = tuple[System, Options]


class Session:
    """Measures systems under one time limit, and remembers what is worth recording.

    Args:
        seconds: Float. When to be done, counted from now.
        wait_seconds: Float. The longest wait for other processes to calm down, over
            all measurements of the session.
    """

    def __init__(
        self,
        seconds: float = SECONDS,
        wait_seconds: float = machine.WAIT_SECONDS,
    ) -> None:
        self._deadline = Deadline(seconds)
        self._machine = machine.describe()
        self._patience = wait_seconds
        self._waits: list[machine.Wait] = []
        self._meter = machine.LoadMeter()
        self._versions: dict[str, str | None] = own_versions()
        self._absent: list[dict[str, str | None]] = []

    def measure(
        self, requests: Sequence[Request], turns: Turns, reserve: float = 0.0
    ) -> Measurement:
        """Measures in turns those of the systems that are here.

        Args:
            requests: The systems, and what to measure of each.
            turns: How often and how long.
            reserve: Float. Seconds to leave for what is measured after this.

        Raises:
            WorkerFailed: If tfctr itself could not be measured.
        """
        workers = []
        for system, options in requests:
            missing = system.interpreter.missing()
            if missing is None:
                workers.append(Worker(system, options))
            else:
                remedy = system.interpreter.remedy
                self._note_absence(system, f"{missing} is missing.", remedy)
        limit = Deadline(self._deadline.left() - reserve)
        result = measure(workers, turns, limit, self._wait)
        for worker in workers:
            reason = result.failures.get(worker.system.name)
            if reason is not None:
                if worker.system.is_ours:
                    raise WorkerFailed(reason)
                self._note_absence(worker.system, reason, None)
        self._note_versions(result.versions)
        return result

    def record(self) -> dict[str, Any]:
        """What stands beside the numbers: machine, versions, who is absent."""
        return {
            "machine": {
                **self._machine,
                "other_cpu_share_before": round(max(w.share for w in self._waits), 3),
                "other_cpu_share_during": round(self._meter.share(), 3),
                "waited_seconds": round(sum(w.seconds for w in self._waits), 1),
                "quiet_at_start": all(w.is_quiet for w in self._waits),
            },
            "versions": self._versions,
            "absent": self._absent,
        }

    def _wait(self, limit: float) -> None:
        """Waits for the others, when our workers are ready and idle."""
        wait = machine.wait_for_quiet(min(self._patience, max(limit, 0.0)))
        self._patience -= wait.seconds
        self._waits.append(wait)

    def _note_absence(self, system: System, reason: str, remedy: str | None) -> None:
        entry = {"system": system.name, "reason": reason, "remedy": remedy}
        if entry not in self._absent:
            self._absent.append(entry)

    def _note_versions(self, versions: dict[str, dict[str, str]]) -> None:
        """Adds libraries; one that differs from ours is marked with its system."""
        for system, libraries in versions.items():
            for library, version in libraries.items():
                if self._versions.setdefault(library, version) != version:
                    self._versions[f"{library} ({system})"] = version


def own_versions() -> dict[str, str | None]:
    """Versions of tfctr and of what runs this process."""
    return {
        "tfctr": tfctr.__version__,
        "git": _git_hash(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def common_facts(command: str, options: Options, turns: Turns) -> dict[str, Any]:
    """What a result says first: what was measured."""
    return {
        "command": command,
        "workloads": {label: asdict(w) for label, w in options.workloads.items()},
        "threads": options.threads,
        "turns": asdict(turns),
    }


def _git_hash() -> str | None:
    """The commit, with `+` when files differ from it; `None` outside of git."""
    if not (ROOT / ".git").exists():
        return None
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(
        command, capture_output=True, check=True, text=True
    ).stdout.strip()
