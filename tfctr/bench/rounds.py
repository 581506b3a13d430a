"""Measures several systems in turns, within a limit of time.

Each turn belongs to one case of one worker; a round gives every case one turn. What
disturbs the machine for a while then disturbs all systems alike, and the ratio of two
systems survives it.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from tfctr.bench.systems import System
from tfctr.bench.worker import WorkerFailed
from tfctr.bench.workers.options import Options

# Seconds kept back from the steps for closing the workers and writing the result.
_CLOSING = 2.0
# Share of the time until which a worker may get ready. On an idle machine it is plenty;
# under load a slow system is given up, rather than all of them.
_SET_UP_SHARE = 0.7
# The first worker is never given up for being slow: a result that is late, and says how
# busy the machine was, is worth more than none. Only a worker that hangs is stopped.
_HANGING = 120.0


class Runner(Protocol):
    """What a round needs from a worker."""

    system: System
    options: Options
    versions: dict[str, str]

    def start(self, timeout: float) -> None: ...
    def run(
        self, case: str, steps: int, untimed: int, timeout: float
    ) -> list[float]: ...
    def facts(self, timeout: float) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Deadline:
    """Counts down from a number of seconds."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        return self._end - self._clock()


@dataclass(frozen=True)
class Turns:
    """How often and how long each case is measured.

    Args:
        rounds: Integer. Turns of each case, when time allows; at least one is run.
        steps: Integer. Timed steps of a turn.
        untimed: Integer. Steps before them, in which caches find their rows again.
        fewer_steps: Maps the name of a slow system to its timed steps of a turn.
    """

    rounds: int = 5
    steps: int = 3
    untimed: int = 1
    fewer_steps: dict[str, int] = field(default_factory=dict)

    def steps_of(self, system: str) -> int:
        return self.fewer_steps.get(system, self.steps)


@dataclass
class Measurement:
    """What came of it.

    Args:
        samples: Maps (system, case) to the milliseconds of its timed steps.
        versions: Maps a system to the versions of its libraries.
        facts: Maps a system to what its worker told beside times.
        failures: Maps a system to the reason why it has no times, or too few.
    """

    samples: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def no_wait(limit: float) -> object:
    """Begins at once."""


def measure(
    workers: Sequence[Runner],
    turns: Turns,
    deadline: Deadline,
    wait: Callable[[float], object] = no_wait,
    at_once: int = 2,
) -> Measurement:
    """Sets every worker up, measures them in turns, and closes them.

    Args:
        workers: The systems, in the order of their turns; first the most important.
        turns: How often and how long each case is measured.
        deadline: When to be done. Rounds that would pass it are left out.
        wait: Called when all workers are ready and idle, with the seconds it may take.
        at_once: Integer. Workers, but for the first, that are set up at the same time.
    """
    result = Measurement()
    try:
        ready = _set_up(workers, deadline.left(), at_once, result)
        wait((deadline.left() - _CLOSING) / 2)
        _take_turns(ready, turns, deadline, result)
        _ask_facts(ready, deadline, result)
    finally:
        for worker in workers:
            worker.close()
    return result


def _set_up(
    workers: Sequence[Runner], seconds: float, at_once: int, result: Measurement
) -> list[Runner]:
    """Starts the first worker, then the others, a few at a time.

    The first is the one that all others are compared with, so it need not share the
    machine. Returns those that are ready, in their order.
    """
    end = time.monotonic() + _SET_UP_SHARE * seconds

    def start(worker: Runner) -> str | None:
        limit = _HANGING if worker is workers[0] else end - time.monotonic()
        if limit <= 0.0:
            return "No time was left to set it up."
        try:
            worker.start(limit)
        except WorkerFailed as error:
            worker.close()
            return str(error)
        return None

    reasons = [start(worker) for worker in workers[:1]]
    with ThreadPoolExecutor(at_once) as pool:
        reasons += pool.map(start, workers[1:])
    for worker, reason in zip(workers, reasons, strict=True):
        if reason is None:
            result.versions[worker.system.name] = worker.versions
        else:
            result.failures[worker.system.name] = reason
    return [w for w, reason in zip(workers, reasons, strict=True) if reason is None]


def _take_turns(
    workers: Sequence[Runner], turns: Turns, deadline: Deadline, result: Measurement
) -> None:
    longest_round = 0.0
    for number in range(turns.rounds):
        left = deadline.left() - _CLOSING
        if number > 0 and left < longest_round:
            return
        for index, worker in enumerate(workers):
            if worker.system.name not in result.failures:
                limit = _HANGING if index == 0 else deadline.left() - _CLOSING
                _take_turn(worker, turns, max(limit, 0.0), result)
        longest_round = max(longest_round, left - (deadline.left() - _CLOSING))


def _take_turn(worker: Runner, turns: Turns, limit: float, result: Measurement) -> None:
    name = worker.system.name
    deadline = Deadline(limit)
    for case in worker.options.cases():
        try:
            times = worker.run(
                case.name, turns.steps_of(name), turns.untimed, deadline.left()
            )
        except WorkerFailed as error:
            worker.close()
            result.failures[name] = str(error)
            return
        result.samples.setdefault((name, case.name), []).extend(times)


def _ask_facts(
    workers: Sequence[Runner], deadline: Deadline, result: Measurement
) -> None:
    for worker in workers:
        name = worker.system.name
        if name in result.failures:
            continue
        try:
            result.facts[name] = worker.facts(max(deadline.left(), _CLOSING))
        except WorkerFailed as error:
            result.failures[name] = str(error)
