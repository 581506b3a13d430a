import json

import pytest

from tfctr.bench import serve
from tfctr.bench.rounds import Turns
from tfctr.bench.workload import Workload

SMALL = Workload(num_fields=3, rows_per_field=500, dim=4, num_batches=4)


@pytest.mark.soak
def test_small_run_gives_the_promised_json(tmp_path):
    turns = Turns(rounds=2, steps=3, untimed=1)
    tables = {"one": SMALL, "two": SMALL}
    result = serve.run(tables, turns, str(tmp_path), wait_seconds=0.0)
    result = json.loads(json.dumps(result))
    assert list(tmp_path.iterdir()) == []
    assert result["absent"] == []
    rows = {(r["table"], r["batch_size"], r["system"]): r for r in result["rows"]}
    assert len(rows) == 8
    for row in rows.values():
        assert 0 < row["p50_ms"] <= row["p99_ms"] and row["requests"] == 6
    ratio = rows["one", 1, "tfctr"]["p50_ms"] / rows["one", 1, "keras"]["p50_ms"]
    assert result["ratios"]["one/batch_1"] == pytest.approx(ratio)
    assert set(result["intervals"]) == set(result["ratios"])
    one, two = (result["facts"][name] for name in ("one", "two"))
    assert one["exports"]["delta"]["rows"] == 3 * 5 and "delta" not in two["exports"]
    versions = one["servers"]["tfctr"]["versions"]
    assert (versions["swaps"], versions["failed_requests"]) == (10, 0)
    assert versions["bytes_while_changing"] > 0
    for system in ("tfctr", "keras"):
        assert one["servers"][system]["load_seconds"] > 0
        assert one["exports"][system]["bytes"] > 4 * 4 * 1500
    text = serve.table(result)
    assert "one/batch_512" in text and "a delta of 15 rows" in text
