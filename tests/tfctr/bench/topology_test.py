"""`bench topology`: the summary by hand, and one small run."""

import importlib.util
import json
import sys

import pytest

from tfctr.bench import topology
from tfctr.bench.workload import Workload
from tfctr.topology import Machine, NumaNode


def jobs(*medians, memory=None):
    """Jobs with these medians."""
    return [{"ms": [ms, 0.0, 99.0], "cpus": 2, "memory": memory} for ms in medians]


FOUND = {
    1: {"free": jobs(2.0, 4.0, 9.0), "pinned": jobs(4.0, 4.0, 4.0, memory="bind")},
    2: {"free": jobs(8.0, 8.0), "pinned": jobs(4.0, 4.0, memory="first_touch")},
}
ONE_NODE = Machine((0, 1), (), (NumaNode(0, (0, 1), 2**30),))
TWO_NODES = Machine((0, 1), (), (NumaNode(0, (0,), 1), NumaNode(1, (1,), 1)))


def test_rows_are_medians_of_jobs():
    rows = topology.rows_of(FOUND)
    assert rows[0] == {
        **{"ranks": 1, "case": "free", "ms": 4.0},
        **{"jobs": 3, "cpus": 2, "memory": None},
    }
    assert [row["ms"] for row in rows] == [4.0, 4.0, 8.0, 4.0]


def test_ratios_are_of_medians():
    result = topology.ratios_of(FOUND)
    assert result["ratios"] == {
        "pinned_over_free/1_rank": 1.0,
        "pinned_over_free/2_ranks": 0.5,
    }
    assert result["intervals"]["pinned_over_free/2_ranks"] == (0.5, 0.5)


def test_a_plan_that_pins_nothing_is_told():
    lines = topology.notes(ONE_NODE, {1: FOUND[1]})
    assert [line.split(":")[0] for line in lines] == [
        "This machine shows one NUMA node",
        "With 1 rank, each may run on all 2 hardware threads in the plan too",
        "pinned_over_free/1_rank",
    ]
    assert "no difference beyond the scatter" in lines[2]


def test_what_pins_is_not_talked_down():
    (line,) = topology.notes(TWO_NODES, {2: FOUND[2]})
    assert line.startswith("With 2 ranks, the system refused to bind memory")
    bound = {"free": jobs(8.0), "pinned": jobs(4.0, memory="bind")}
    assert topology.notes(TWO_NODES, {2: bound}) == []


def test_without_horovod_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="Received: a Python without Horovod. Run it"):
        topology.run()


def test_a_job_that_fails_is_quoted(monkeypatch, tmp_path):
    failing = tmp_path / "horovodrun"
    failing.write_text("#!/bin/sh\necho no such host\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ValueError, match="exit code 3. It said:\nno such host"):
        topology.run_job(Workload(), ranks=2, steps=1, is_pinned=False)


@pytest.mark.soak
@pytest.mark.multiprocess
def test_a_small_run_ends_with_every_case(horovodrun):
    small = Workload(num_fields=3, rows_per_field=500, batch_size=64)
    result = topology.run(small, ranks=(2,), rounds=1, steps=2, wait_seconds=0.0)
    assert [row["case"] for row in result["rows"]] == ["free", "pinned"]
    assert result["rows"][0]["memory"] is None
    assert result["rows"][1]["memory"] is not None
    assert json.loads(json.dumps(result))["command"] == "topology"
    assert "pinned_over_free/2_ranks" in topology.table(result)
