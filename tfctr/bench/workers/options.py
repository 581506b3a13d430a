"""`Options`: what a worker is asked to measure, sent to it as JSON.

Only NumPy and the standard library: the peers' interpreters import this module too.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from tfctr.bench.workload import Workload

SPARSE = "sparse"
WHOLE = "whole"


@dataclass(frozen=True)
class Case:
    """One thing a worker times: a kind of step, on a workload, with an optimizer."""

    kind: str
    label: str
    workload: Workload
    optimizer: str

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.label}/{self.optimizer}"


@dataclass(frozen=True)
class Options:
    """The work of one worker.

    Args:
        workloads: Maps a label to the workload it stands for.
        optimizers: Names of the sparse optimizers to measure on each workload.
        kinds: What to time of each: `"sparse"`, embeddings alone (lookup, backward,
            update); `"whole"`, one training step of a whole model; or what else the
            worker says that it knows.
        threads: Integer. Threads the system may use.
        batches_per_step: Integer. Batches that one timed step trains on.
        steps: Integer. Steps of each case that the worker will be asked for; 0 when
            that is open.
        storage: Arguments of `TieredStorage`; empty when all is in memory. A peer finds
            under `"ssd"` the directory to keep its files in.
    """

    workloads: dict[str, Workload]
    optimizers: tuple[str, ...]
    kinds: tuple[str, ...] = (SPARSE,)
    threads: int = 2
    batches_per_step: int = 1
    steps: int = 0
    storage: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Options":
        workloads = {
            label: Workload(**fields) for label, fields in values["workloads"].items()
        }
        tuples = {name: tuple(values[name]) for name in ("optimizers", "kinds")}
        return cls(**{**values, **tuples, "workloads": workloads})

    def cases(self) -> list[Case]:
        """Every case, workload after workload."""
        return [
            Case(kind, label, workload, optimizer)
            for label, workload in self.workloads.items()
            for optimizer in self.optimizers
            for kind in self.kinds
        ]
