"""`StepMeter`: where the time of training goes, and what its tables do meanwhile."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_layers import DynamicEmbedding
from tfctr.callbacks.input_clock import InputClock
from tfctr.distributed import engine
from tfctr.report.history import PARTS
from tfctr.report.table_counts import changes, total
from tfctr_ops import step_times


@dataclasses.dataclass(frozen=True)
class _Reading:
    """All counters at one moment."""

    examples: int
    input_seconds: float
    lookup_seconds: float
    update_seconds: float
    tables: dict[str, dict[str, Any]]


class StepMeter:
    """Reads the counters of data set, ops and tables, and tells of what came between.

    Args:
        input_clock: `InputClock`.
    """

    def __init__(self, input_clock: InputClock) -> None:
        self._clock = input_clock
        self._before = self._read([])

    def start(self, layers: Sequence[DynamicEmbedding]) -> None:
        """Forgets what came before."""
        self._before = self._read(layers)

    def interval(
        self,
        seconds: float,
        metrics: dict[str, Any],
        layers: Sequence[DynamicEmbedding],
    ) -> dict[str, Any]:
        """Returns what was done since the last call, on all ranks; all must call it.

        Args:
            seconds: Float. What the steps have taken.
            metrics: Dict of floats.
            layers: Those of the model.
        """
        before, now = self._before, self._read(layers)
        self._before = now
        took = {
            part: getattr(now, f"{part}_seconds") - getattr(before, f"{part}_seconds")
            for part in PARTS
            if part != "dense"
        }
        took["dense"] = max(0.0, seconds - sum(took.values()))
        if not self._clock.is_used:
            del took["input"]
        own = {
            "seconds": seconds,
            "examples": now.examples - before.examples,
            "parts": took,
            "metrics": metrics,
            "tables": {
                name: changes(stats, before.tables.get(name, {}))
                for name, stats in now.tables.items()
            },
        }
        return self._together(engine.gather_objects(own, "report.interval"))

    def _together(self, of_ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        first = of_ranks[0]
        times = {
            f"{part}_seconds": _mean([of["parts"][part] for of in of_ranks])
            if part in first["parts"]
            else None
            for part in PARTS
        }
        examples = sum(of["examples"] for of in of_ranks)
        return {
            "seconds": _mean([of["seconds"] for of in of_ranks]),
            **times,
            "examples": examples if self._clock.is_used else None,
            "metrics": mean_metrics([of["metrics"] for of in of_ranks]),
            "tables": {
                name: total(of["tables"][name] for of in of_ranks)
                for name in first["tables"]
            },
        }

    def _read(self, layers: Sequence[DynamicEmbedding]) -> _Reading:
        input_seconds, examples = self._clock.read()
        lookup_seconds, update_seconds = step_times()
        tables = {
            f"{layer.name}/{name}": stats
            for layer in layers
            for name, stats in layer.stats().items()
        }
        return _Reading(examples, input_seconds, lookup_seconds, update_seconds, tables)


def mean_metrics(of_ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the means over the ranks; `None` for what is no number on one of them."""
    return {
        name: None
        if any(of.get(name) is None for of in of_ranks)
        else _mean([of[name] for of in of_ranks])
        for name in of_ranks[0]
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
