"""`bench horovod`: the summary by hand, and one small run."""

import importlib.util
import json
import sys

import pytest

from tfctr.bench import horovod
from tfctr.bench.workload import Workload

FOUND = {
    2: {
        "sharded": [{"ms": ms, "bytes": 60.0} for ms in (2.0, 4.0, 9.0)],
        "sharded_float16": [{"ms": 4.0, "bytes": 30.0}] * 3,
        "all_gather": [{"ms": 8.0, "bytes": 120.0}] * 3,
        "every_step": [{"ms": 1.0, "bytes": 40.0}] * 3,
        "parameters/4": [{"ms": 0.5, "bytes": 10.0}] * 3,
    }
}


def test_rows_are_medians():
    rows = horovod.rows_of(FOUND)
    assert rows[0] == {"ranks": 2, "case": "sharded", "ms": 4.0, "bytes": 60.0}
    assert [row["case"] for row in rows] == list(FOUND[2])


def test_ratios_are_of_medians():
    result = horovod.ratios_of(FOUND)
    assert result["ratios"] == {
        "sharded_over_all_gather/ms/2_ranks": 0.5,
        "sharded_over_all_gather/bytes/2_ranks": 0.5,
        "sharded_float16_over_sharded/ms/2_ranks": 1.0,
        "sharded_float16_over_sharded/bytes/2_ranks": 0.5,
        "parameters/4_over_every_step/ms/2_ranks": 0.5,
        "parameters/4_over_every_step/bytes/2_ranks": 0.25,
    }
    assert result["intervals"].keys() == result["ratios"].keys()
    low, high = result["intervals"]["sharded_over_all_gather/ms/2_ranks"]
    assert 0.25 <= low <= 0.5 <= high <= 9 / 8


def test_without_horovod_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="Received: a Python without Horovod. Run it"):
        horovod.run()


@pytest.mark.soak
@pytest.mark.multiprocess
def test_a_small_run_ends_with_every_case(run_ranks):
    small = Workload(num_fields=3, rows_per_field=500, batch_size=64)
    result = horovod.run(small, ranks=(2,), rounds=2, wait_seconds=0.0)
    cases = {row["case"] for row in result["rows"]}
    assert cases == {
        *("sharded", "sharded_float16", "all_gather", "every_step"),
        *(
            f"{merge}/{k}"
            for merge in ("frozen_denominator", "parameters")
            for k in (1, 4, 16)
        ),
    }
    assert all(row["bytes"] > 0 for row in result["rows"])
    # Of so few ids, what is not sent for each weight of them is nothing beside it.
    of_case = {row["case"]: row["bytes"] for row in result["rows"]}
    assert of_case["parameters/16"] < of_case["parameters/4"] < of_case["every_step"]
    assert json.loads(json.dumps(result))["command"] == "horovod"
    assert "sharded_over_all_gather/bytes/2_ranks" in horovod.table(result)


@pytest.mark.soak
def test_a_job_that_fails_is_quoted(run_ranks, monkeypatch, tmp_path):
    failing = tmp_path / "horovodrun"
    failing.write_text("#!/bin/sh\necho no such host\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ValueError, match="exit code 3. It said:\nno such host"):
        horovod.measure(Workload(), ranks=2, rounds=1)
