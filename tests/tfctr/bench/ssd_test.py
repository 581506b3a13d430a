import json

import pytest

from tfctr.bench import ssd, systems
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import Workload

READS = Workload(num_fields=1, rows_per_field=30_000, dim=4, batch_size=500)
STEPS = Workload(num_fields=3, rows_per_field=2000, dim=4, batch_size=64)


def test_rates_are_rows_of_a_batch_over_the_time():
    requests = [
        (
            systems.tfctr("read_tfctr"),
            Options({"reads": READS}, ("adagrad",), ("read",)),
        )
    ]
    measured = Measurement(samples={("tfctr", "read/reads/adagrad"): [250.0, 1000.0]})
    assert ssd.rates(measured, requests) == {("tfctr", "read"): [2000.0, 500.0]}


def test_reads_are_compared_with_what_is_there():
    rates = {
        ("tfctr", "read"): [1.0],
        ("tfctr_direct", "read"): [2.0],
        ("tfctr_direct", "device"): [3.0],
    }
    assert ssd.read_pairs(rates) == {"cold_read_over_device": ([2.0], [3.0])}
    rates["rocksdb", "read"] = [4.0]
    assert ssd.read_pairs(rates)["warm_read_over_rocksdb"] == ([1.0], [4.0])


def test_steps_are_compared_with_the_same_step_in_memory():
    times = {
        ("tfctr", "sparse"): [1.0],
        ("tfctr", "whole"): [2.0],
        ("tfctr_ssd", "sparse"): [3.0],
        ("tfctr_ssd", "whole"): [4.0],
        ("tfctr_ssd", "lookahead"): [5.0],
        ("tfctr_direct", "lookahead"): [6.0],
    }
    assert ssd.step_pairs(times) == {
        "ram_10_percent_over_all_ram": ([5.0], [2.0]),
        "ram_10_percent_over_all_ram_without_lookahead": ([4.0], [2.0]),
        "ram_10_percent_over_all_ram_bare_store": ([3.0], [1.0]),
        "ram_10_percent_over_all_ram_without_page_cache": ([6.0], [2.0]),
    }


def test_a_row_says_what_a_step_read():
    case = "whole/W4/adagrad"
    counts = {"rows_read": 300.0, "read_calls": 150.0, "disk_bytes": 2e6}
    measured = Measurement(
        samples={
            ("tfctr_direct", case): [1.0, 3.0],
            ("rocksdb", "read/r/adagrad"): [5.0],
        },
        facts={"tfctr_direct": {"counts": {case: counts}}, "rocksdb": {}},
    )
    ours, peer = ssd.rows_of(measured)
    assert (ours["ms"], ours["steps"]) == (2.0, 2)
    assert ours["rows_per_read_call"] == 2.0
    assert ours["disk_mb"] == 2.0
    assert peer == {"system": "rocksdb", "kind": "read", "ms": 5.0, "steps": 1}


@pytest.mark.soak
def test_small_run_gives_the_promised_json(tmp_path):
    turns = Turns(rounds=2, steps=2, untimed=1)
    result = ssd.run(READS, STEPS, turns, turns, str(tmp_path), wait_seconds=0.0)
    result = json.loads(json.dumps(result))
    assert list(tmp_path.iterdir()) == []
    absent = {entry["system"] for entry in result["absent"]}
    assert absent <= {"rocksdb"}, result["absent"]
    for name in ("warm_read_rows_per_second", "cold_read_rows_per_second"):
        assert result[name] > 0
    assert (result["rocksdb_read_rows_per_second"] is None) == bool(absent)
    ratios = result["ratios"]
    assert ("warm_read_over_rocksdb" in ratios) == (not absent)
    assert ratios["cold_read_over_device"] == pytest.approx(
        result["cold_read_rows_per_second"] / result["device_reads_per_second"]
    )
    rows = {(row["system"], row["kind"]): row for row in result["rows"]}
    ms = rows["tfctr_ssd", "lookahead"]["ms"] / rows["tfctr", "whole"]["ms"]
    assert ratios["ram_10_percent_over_all_ram"] == pytest.approx(ms)
    assert set(result["intervals"]) == set(ratios)
    # All but a hundredth of the rows was on disk, and no key came twice.
    assert 450 <= rows["tfctr", "read"]["rows_read"] <= 500
    assert rows["tfctr_direct", "device"]["read_calls"] >= 500
    assert rows["tfctr_direct", "read"]["disk_mb"] > 0.5
    for kind in ("sparse", "whole", "lookahead"):
        assert rows["tfctr_ssd", kind]["rows_read"] > 0
    assert rows["tfctr", "whole"]["rows_read"] == 0
    tables = result["facts"]["steps"]["tfctr_ssd"]["tables"]
    assert [stats["known_rows"] for stats in tables.values()] == [6000] * 2
    bytes_in_memory = sum(s["rows"] * s["row_bytes"] for s in tables.values())
    assert bytes_in_memory <= 0.1 * sum(6000 * s["row_bytes"] for s in tables.values())
    text = ssd.table(result)
    assert "cold_read_over_device" in text and "rows/read call" in text
