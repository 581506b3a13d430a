"""`History`: a run as its events tell it."""

from collections.abc import Iterable, Sequence
from typing import Any

from tfctr.report.events import Event
from tfctr.report.table_counts import over_time, total

# Where the time of training goes, in the order of a step.
PARTS = ("input", "lookup", "dense", "update")
_SUMS = ("steps", "seconds", "examples", *(f"{part}_seconds" for part in PARTS))


class History:
    """The intervals and epochs of a run, so far; or its windows, instead of epochs.

    A run that begins again at step s does again what came after s, so what earlier
    events tell of that is dropped. One that begins at step 0 is another run.

    Example:

        reader, history = EventReader("runs/ads"), History()
        history.add(reader.read())
    """

    def __init__(self) -> None:
        self.intervals: list[Event] = []
        self.epochs: list[Event] = []
        self.windows: list[Event] = []
        self.has_windows = False
        self.ranks = 1
        self._first: set[int] = set()  # Steps at which first intervals end.
        self._begins = False
        self._whole, self._warm = _RunningMerge(), _RunningMerge()

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event["kind"] == "begin":
                self._begin_at(event["step"])
                self.ranks = event.get("ranks", 1)
                self.has_windows = "window" in event
            elif event["kind"] == "epoch":
                self.epochs.append(event)
            elif event["kind"] == "window":
                self.windows.append(event)
            else:
                if self._begins:
                    self._first.add(event["step"])
                self._begins = False
                self.intervals.append(event)

    def _begin_at(self, step: int) -> None:
        self.intervals = [event for event in self.intervals if event["step"] <= step]
        self.epochs = [event for event in self.epochs if event["step"] <= step]
        self.windows = [event for event in self.windows if event["step"] <= step]
        self._first = {first for first in self._first if first <= step}
        self._begins = True
        self._whole, self._warm = _RunningMerge(), _RunningMerge()

    def warm(self) -> list[Event]:
        """The intervals but the first after each begin, in which TensorFlow compiles.

        All, as long as there is no other.
        """
        warm = [event for event in self.intervals if event["step"] not in self._first]
        return warm or self.intervals

    def total(self) -> Event:
        """All intervals as one; without any, an empty one."""
        return self._whole.of(self.intervals)

    def warm_total(self) -> Event:
        """The warm intervals as one."""
        warm = self.warm()
        return self.total() if warm is self.intervals else self._warm.of(warm)

    def thinned(self, num: int) -> list[Event]:
        """The warm intervals, neighbours merged until `num` or fewer are left."""
        warm = self.warm()
        size = -(-len(warm) // num) or 1
        return [merge(warm[i : i + size]) for i in range(0, len(warm), size)]


class _RunningMerge:
    """Merges events that become more; who watches a run asks again and again."""

    def __init__(self) -> None:
        self._merged = merge([])
        self._num = 0

    def of(self, events: Sequence[Event]) -> Event:
        if len(events) > self._num:
            self._merged = merge([self._merged, *events[self._num :]])
            self._num = len(events)
        return self._merged


def merge(events: Sequence[Event]) -> Event:
    """Returns neighbouring intervals as one; of none, one in which nothing was done."""
    merged: Event = {
        "kind": "steps",
        "step": 0,
        "epoch": 0,
        "metrics": {},
        "tables": {},
    }
    for event in events:
        merged |= {name: event[name] for name in event if name not in _SUMS}
    for name in _SUMS:
        known = [event[name] for event in events if event.get(name) is not None]
        merged[name] = sum(known) if known or name == "steps" else None
    merged["seconds"] = merged["seconds"] or 0.0
    names = dict.fromkeys(name for event in events for name in event["tables"])
    merged["tables"] = {
        name: over_time([event["tables"].get(name, {}) for event in events])
        for name in names
    }
    return merged


def all_tables(event: Event) -> dict[str, Any]:
    """What the tables of an event hold and did together."""
    return total(event["tables"].values())


def speed(event: Event) -> float | None:
    """Examples per second, if the examples were counted."""
    if event.get("examples") is None or not event["seconds"]:
        return None
    return float(event["examples"] / event["seconds"])


def time_shares(event: Event) -> dict[str, float]:
    """The share of the time in each of `PARTS` that was measured."""
    known = {part: event.get(f"{part}_seconds") for part in PARTS}
    seconds = event["seconds"] or 1.0
    return {part: took / seconds for part, took in known.items() if took is not None}
