"""The worker's side of the conversation: run steps when told, answer milliseconds.

Only the standard library: the peers' interpreters import this module too.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

Step = Callable[[int], object]


def no_facts() -> dict[str, Any]:
    """The answer of a worker with nothing to tell but its times."""
    return {}


@dataclass(frozen=True)
class Cases:
    """What a worker can run.

    Args:
        steps: Maps the name of a case to a function that runs step number `i`, and
            returns when its work is done.
        versions: Versions of the libraries that are measured.
        warm_up: Integer. Untimed steps of each case before the worker is ready.
        facts: Function that returns what else is worth recording, when asked.
    """

    steps: dict[str, Step]
    versions: dict[str, str] = field(default_factory=dict)
    warm_up: int = 8
    facts: Callable[[], dict[str, Any]] = no_facts


class Channel:
    """Lines of JSON over a pair of pipes."""

    def __init__(self, source: IO[str], sink: IO[str]) -> None:
        self._source = source
        self._sink = sink

    @classmethod
    def take_stdout(cls) -> "Channel":
        """Keeps the real stdout for answers; what others print goes to stderr."""
        sink = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        return cls(sys.stdin, sink)

    def send(self, message: dict[str, Any]) -> None:
        self._sink.write(json.dumps(message) + "\n")
        self._sink.flush()

    def receive(self) -> dict[str, Any] | None:
        """The next command, or `None` once the other side has gone."""
        line = self._source.readline()
        return dict(json.loads(line)) if line else None


def serve(cases: Cases, channel: Channel) -> None:
    """Warms every case up, says so, and obeys until the channel closes."""
    done = {name: 0 for name in cases.steps}
    for name in cases.steps:
        _run(cases, done, name, cases.warm_up)
    channel.send({"versions": cases.versions})
    # A collection in the middle of a step would be charged to the system, and one of
    # everything a framework holds takes a tenth of a second.
    gc.collect()
    gc.freeze()
    gc.disable()
    while (command := channel.receive()) is not None:
        if command["do"] == "run":
            _run(cases, done, command["case"], command["untimed"])
            times = _run(cases, done, command["case"], command["steps"])
            channel.send({"ms": times})
        elif command["do"] == "facts":
            channel.send({"facts": cases.facts()})
        gc.collect()


def _run(cases: Cases, done: dict[str, int], name: str, steps: int) -> list[float]:
    """Runs the next `steps` steps of a case; the milliseconds of each."""
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        cases.steps[name](done[name])
        times.append((time.perf_counter() - start) * 1e3)
        done[name] += 1
    return times
