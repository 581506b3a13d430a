"""`Worker`: one system in a process of its own, that runs steps when told to."""

import json
import pathlib
import selectors
import subprocess
import tempfile
import time
from typing import Any

from tfctr.bench.systems import System, variables
from tfctr.bench.workers.options import Options

_LAUNCHER = pathlib.Path(__file__).parent / "workers" / "launch.py"
# Lines of a failed worker's stderr to show: the end of a traceback.
_LINES_SHOWN = 6


class WorkerFailed(RuntimeError):
    """A worker died, or did not answer in time."""


class Worker:
    """A system, its options, and the process that measures it.

    The process starts in `start` and computes only between a command and its answer,
    so that several workers can be measured in turns.

    Args:
        system: What to measure, and where.
        options: What the worker is asked to measure.
    """

    def __init__(self, system: System, options: Options) -> None:
        self.system = system
        self.options = options
        self.versions: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = tempfile.TemporaryFile()
        self._unread = b""

    def start(self, timeout: float) -> None:
        """Starts the process; returns when it is warm and ready to be timed."""
        command = [
            str(self.system.interpreter.python),
            "-P",
            str(_LAUNCHER),
            self.system.worker,
            json.dumps(self.options.to_json()),
        ]
        self._process = subprocess.Popen(
            command + ["--alone"] * self.system.interpreter.alone,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=variables(self.system.interpreter, self.options.threads),
        )
        self.versions = self._receive(timeout)["versions"]

    def run(self, case: str, steps: int, untimed: int, timeout: float) -> list[float]:
        """Runs `untimed` steps, then `steps` more; the milliseconds of the latter."""
        command = {"do": "run", "case": case, "steps": steps, "untimed": untimed}
        return list(self._ask(command, timeout)["ms"])

    def facts(self, timeout: float) -> dict[str, Any]:
        """What the worker tells beside its times."""
        return dict(self._ask({"do": "facts"}, timeout)["facts"])

    def close(self) -> None:
        """Ends the process and waits for it. Closing twice is fine."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        self._stderr.close()

    def _ask(self, command: dict[str, Any], timeout: float) -> dict[str, Any]:
        if self._process is None or self._process.stdin is None:
            raise WorkerFailed(f"The worker of '{self.system.name}' is not running.")
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._story("died")) from None
        return self._receive(timeout)

    def _receive(self, timeout: float) -> dict[str, Any]:
        answer = dict(json.loads(self._read_line(timeout)))
        if "error" in answer:
            raise WorkerFailed(self._story(f"failed with {answer['error']}"))
        return answer

    def _read_line(self, timeout: float) -> bytes:
        if self._process is None or self._process.stdout is None:
            raise WorkerFailed(f"The worker of '{self.system.name}' is not running.")
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise WorkerFailed(
                        f"The worker of '{self.system.name}' did not answer within "
                        f"{max(timeout, 0.0):.0f} seconds."
                    )
                received = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not received:
                    raise WorkerFailed(self._story("died"))
                self._unread += received
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def _story(self, what: str) -> str:
        """What happened, with the end of what the process said."""
        if self._process is not None:
            self._process.wait(timeout=10)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        end = "\n".join(line for line in lines[-_LINES_SHOWN:] if line.strip())
        return f"The worker of '{self.system.name}' {what}. It said:\n{end}"
