"""What the machine is, and how busy others keep it."""

import os
import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Share of all cores above which others disturb a measurement.
BUSY_SHARE = 0.1
WAIT_SECONDS = 20.0

_THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


class LoadMeter:
    """Tells the share of all cores that other processes used since it was made.

    Ours are this process and the children it has waited for: read the meter when no
    child is running.
    """

    def __init__(self) -> None:
        self._time = time.monotonic()
        self._busy = _busy_seconds()
        self._own = _own_seconds()

    def share(self) -> float:
        cores = os.cpu_count() or 1
        elapsed = (time.monotonic() - self._time) * cores
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        return min(max(others / elapsed, 0.0), 1.0)


def measure_share(seconds: float = 1.0) -> float:
    """The share of all cores that others use, watched for some seconds.

    Processes that were started here count as others, so let them be idle.
    """
    meter = LoadMeter()
    time.sleep(seconds)
    return meter.share()


@dataclass(frozen=True)
class Wait:
    """How the wait for a quiet machine went."""

    seconds: float
    share: float

    @property
    def is_quiet(self) -> bool:
        return self.share <= BUSY_SHARE


def wait_for_quiet(
    limit: float = WAIT_SECONDS,
    measure: Callable[[], float] = measure_share,
    clock: Callable[[], float] = time.monotonic,
) -> Wait:
    """Returns once others use little of the machine, or after `limit` seconds."""
    start = clock()
    share = measure()
    waited = 0.0
    while share > BUSY_SHARE and clock() - start < limit:
        share = measure()
        waited = clock() - start
    return Wait(waited, share)


def describe() -> dict[str, Any]:
    """The hardware and the settings that change what is measured."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(_memory_bytes() / 1e9, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "transparent_huge_pages": _transparent_huge_pages(),
        "niceness": os.nice(0),
    }


def _busy_seconds() -> float:
    """Processor seconds that were not idle, over all cores, since the machine began."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    user, nice, system, _idle, _waiting, irq, softirq = map(int, fields)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    own = times.user + times.system
    return own + times.children_user + times.children_system


def _cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _transparent_huge_pages() -> str:
    """The chosen one of `always [madvise] never`."""
    if not _THP.exists():
        return "unknown"
    return _THP.read_text().split("[")[1].split("]")[0]
