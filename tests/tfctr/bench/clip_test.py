import json

import pytest

from tfctr.bench import clip
from tfctr.bench.rounds import Turns
from tfctr.bench.workload import Workload

SMALL = Workload(num_fields=3, rows_per_field=50, dim=4, batch_size=16)


@pytest.mark.slow
def test_small_run_gives_the_promised_json():
    turns = Turns(rounds=2, steps=2)
    result = clip.run(SMALL, SMALL, turns, wait_seconds=0.0)
    result = json.loads(json.dumps(result))
    rows = {(row["tables"], row["optimizer"]): row for row in result["rows"]}
    assert set(rows) == {
        (tables, optimizer)
        for tables in ("one_table", "field_tables")
        for optimizer in ("adam", "cow_clip")
    }
    assert all(row["ms"] > 0 and row["steps"] == 4 for row in rows.values())
    for tables, ratio in result["ratios"].items():
        with_clip, without = rows[tables, "cow_clip"], rows[tables, "adam"]
        assert ratio == pytest.approx(with_clip["ms"] / without["ms"])
    assert set(result["intervals"]) == {"one_table", "field_tables"}
    shares = result["facts"]["tfctr"]["clipped_share"]
    assert all(0 < share <= 1 for share in shares.values())
    text = clip.table(result)
    assert "field_tables" in text and "Rows clipped, one_table" in text
