import json

import pytest

from tfctr.bench import snapshot
from tfctr.bench.rounds import Measurement
from tfctr.bench.workload import Workload

SMALL = Workload(num_fields=3, rows_per_field=1000, dim=4, batch_size=32)


def test_a_share_is_told_by_its_median_and_its_last_counts():
    counts = {"rows": 100, "rows_written": 30, "bytes": 5, "linked_bytes": 4}
    saves = [
        {
            "seconds": seconds,
            "device_seconds": 2 * seconds,
            **counts,
            "bytes": number,
        }
        for number, seconds in enumerate([3.0, 1.0, 2.0])
    ]
    found = {"tfctr": {f"save {percent}": saves for percent in (1, 3, 10, 30, 100)}}
    rows = snapshot.save_rows(found)
    assert [row["percent"] for row in rows] == [1, 3, 10, 30, 100]
    assert rows[0] == {
        "system": "tfctr",
        "percent": 1,
        **counts,
        "bytes": 2,
        "seconds": 2.0,
        "device_seconds": 4.0,
        "snapshots": 3,
    }


def test_restored_rows_a_second_are_those_of_the_median_time():
    found = {"tfctr": {"restore": [{"seconds": s, "rows": 60} for s in (1.0, 2.0, 9)]}}
    (row,) = snapshot.restore_rows(found)
    assert (row["seconds"], row["rows_per_second"]) == (2.0, 30.0)


def test_the_longest_step_is_that_of_all_snapshots():
    steps = [
        {"alone_ms": [1.0, 2.0], "saving_ms": [4.0, 4.0, 12.0], "begin_ms": 3.0},
        {"alone_ms": [2.0, 5.0], "saving_ms": [4.0, 5.0], "begin_ms": 1.0},
    ]
    sparse, whole = snapshot.step_rows({"tfctr": {"sparse": steps, "whole": steps[:1]}})
    assert (sparse["ms"], sparse["saving_ms"]) == (2.0, 4.0)
    assert (sparse["longest_alone_ms"], sparse["longest_ms"]) == (5.0, 12.0)
    assert sparse["longest_begin_ms"] == 3.0
    assert sparse["longest_over_median"] == 6.0
    assert sparse["longest_alone_over_median"] == 2.5
    assert sparse["share_over_twice"] == 0.4
    assert (sparse["steps"], sparse["saving_steps"]) == (4, 5)
    assert whole["longest_over_median"] == 8.0


def test_bytes_of_a_key_stand_beside_the_forecast():
    facts = {
        "keys": 10,
        "table_bytes": 1600,
        "bytes_at_rest": 1700,
        "forecast_bytes": 1500,
        "forecast_bytes_at_100m": 16_200_000_000,
    }
    assert snapshot.key_row(Measurement(facts={"tfctr": facts})) == {
        "keys": 10,
        "bytes_per_key": 160.0,
        "resident_bytes_per_key": 170.0,
        "forecast_bytes_per_key": 150.0,
        "forecast_at_100m": 162.0,
    }


@pytest.mark.soak
def test_small_run_gives_the_promised_json(tmp_path):
    result = snapshot.run(SMALL, 20_000, 2, str(tmp_path), wait_seconds=0.0)
    result = json.loads(json.dumps(result))
    assert list(tmp_path.iterdir()) == []
    saves = {(row["system"], row["percent"]): row for row in result["saves"]}
    assert set(saves) == {
        (system, percent)
        for system in ("tfctr", "tfctr_ssd")
        for percent in (1, 3, 10, 30, 100)
    }
    assert all(row["rows"] == 3000 and row["snapshots"] == 2 for row in saves.values())
    # In memory, what was trained since the last snapshot is what is written.
    for percent in (1, 3, 10, 30, 100):
        assert saves["tfctr", percent]["rows_written"] == 30 * percent
    # Over SSD, some of it left memory, and so was written already.
    assert saves["tfctr_ssd", 100]["rows_written"] <= 3000
    assert [row["rows"] for row in result["restores"]] == [3000, 3000]
    assert {(row["system"], row["kind"]) for row in result["steps"]} == {
        (system, kind)
        for system in ("tfctr", "tfctr_ssd")
        for kind in ("sparse", "whole")
    }
    assert all(row["saving_steps"] >= 2 for row in result["steps"])
    # Ten timed batches, and three before them.
    assert result["keys"]["keys"] == 260_000
    assert result["keys"]["bytes_per_key"] > 136
    text = snapshot.table(result)
    assert "M written/s" in text and "forecast" in text
