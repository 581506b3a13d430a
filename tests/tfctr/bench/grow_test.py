import json

import numpy as np
import pytest

from tfctr.bench import grow
from tfctr.bench.rounds import Measurement
from tfctr.bench.workers.new_keys import new_keys, shuffled_batches


def test_payload_is_key_weights_and_slot():
    assert grow.payload_bytes_per_key(dim=16) == 8 + 64 + 64


def test_new_keys_are_all_different_and_spread_over_int64():
    keys = new_keys(100_000)
    assert keys.dtype == np.int64
    assert np.unique(keys).size == keys.size
    assert (keys < 0).mean() == pytest.approx(0.5, abs=0.01)


def test_shuffled_batches_hold_no_key_twice():
    batches = shuffled_batches(1050, 100)
    assert batches.shape == (10, 100)
    keys = new_keys(1050)
    assert np.unique(batches).size == 1000
    assert np.isin(batches, keys).all()
    assert not (batches.ravel() == keys[:1000]).all()


def test_row_holds_the_stall_and_the_memory():
    facts = {"keys": 1000, "bytes_at_rest": 149_600, "bytes_at_peak": 272_000}
    measured = Measurement(facts={"tfctr": facts})
    row = grow.row_of("tfctr", [1.0, 2.0, 2.0, 7.0], 100, 136, measured)
    assert row["ms"] == 2.0
    assert (row["slowest_ms"], row["slowest_batch"]) == (7.0, 3)
    assert row["slowest_over_median"] == 3.5
    assert row["keys_per_second"] == pytest.approx(400 / 0.012)
    assert row["bytes_per_key"] == pytest.approx(149.6)
    assert row["memory_over_payload"] == pytest.approx(1.1)
    assert row["peak_over_payload"] == pytest.approx(2.0)


@pytest.mark.slow
def test_small_run_gives_the_promised_json():
    result = grow.run(keys=20_000, tfra_keys=10_000, batch_size=1000, wait_seconds=0.0)
    result = json.loads(json.dumps(result))
    rows = {row["system"]: row for row in result["rows"]}
    # 20 timed batches, and 3 before them.
    assert rows["tfctr"]["keys"] == 23_000
    assert len(result["batches_ms"]["tfctr"]) == 20
    assert rows["tfctr"]["slowest_over_median"] >= 1.0
    assert result["payload_bytes_per_key"] == 136
    assert "memory/payload" in grow.table(result)
