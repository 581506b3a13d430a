"""What tests of the report share: a run of made-up numbers."""

import pytest

from tfctr.report import EventFile

TABLES = ("vectors/ads & <i>sites</i>", "vectors/users")


def make_events(num_tables=2, num_lines=6):
    """The events of a run of two epochs; every number is another one."""
    names = [*TABLES, *(f"vectors/C{i}" for i in range(num_tables - 2))]
    events = [{"kind": "begin", "time": 1000.0, "step": 0, "ranks": 2}]
    for i in range(1, num_lines + 1):
        tables = {
            name: {
                "rows": 1000 * i + t,
                "known_rows": 1500 * i + t,
                "memory_bytes": 152_000 * i + t,
                "rows_on_disk_only": 500 * i + t,
                "disk_bytes": 90_000 * i + t,
                "found_rows": 700 + i + t,
                "promoted_rows": 200 + i,
                "inserted_rows": 100 + t,
                "refused_keys": 7 * i,
                "updated_rows": 1000 + i,
                "clipped_rows": 10 * t,
                "evicted_rows": 20 + i,
                "rows_read": 210 + i,
                "rows_written": 40 + i,
                "stalled_lookups": 3,
                "stalled_nanoseconds": 2_000_000 * i,
            }
            for t, name in enumerate(names)
        }
        line = {
            "kind": "steps",
            "time": 1000.0 + 5 * i,
            "step": 100 * i,
            "epoch": 2 * (i - 1) // num_lines,
            "steps": 100,
            "seconds": 5.0 + i,
            "examples": 12_800 + i,
            "input_seconds": 0.5,
            "lookup_seconds": 1.25,
            "update_seconds": 0.75,
            "dense_seconds": 2.5 + i,
            "metrics": {"loss": 0.5 - 0.01 * i},
            "tables": tables,
        }
        events.append(line)
        if 2 * i % num_lines == 0:
            metrics = {"loss": 0.4, "val_auc": 0.7 + 0.01 * i}
            events.append({**line, "kind": "epoch", "metrics": metrics})
    return events


@pytest.fixture
def make_run():
    """Writes the events of a run; returns its directory, and them."""

    def make(directory, **options):
        events, file = make_events(**options), EventFile(directory)
        for event in events:
            file.append(event)
        return directory, events

    return make


@pytest.fixture
def run(tmp_path, make_run):
    return make_run(tmp_path / "run")
