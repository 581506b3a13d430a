import json

import numpy as np
import pytest

from tfctr.bench import policy
from tfctr.bench.belady import fewest_misses
from tfctr.bench.trace import workload_trace
from tfctr.bench.workload import Workload

SMALL = Workload(num_fields=4, rows_per_field=2000, batch_size=128)


@pytest.fixture(scope="module")
def trace():
    return workload_trace(SMALL, num_batches=60)


@pytest.mark.parametrize("name", policy.POLICIES)
def test_with_room_for_all_only_new_rows_are_missing(trace, name):
    seen, new = set(), []
    for batch in trace.batches:
        new.append(len(set(batch.tolist()) - seen))
        seen |= set(batch.tolist())
    misses = policy.replay(trace.batches, capacity=len(seen), policy=name)
    assert misses.tolist() == new


@pytest.mark.parametrize("name", policy.POLICIES)
def test_no_policy_beats_belady(trace, name):
    capacity = trace.num_rows // 10
    misses = policy.replay(trace.batches, capacity, name)
    assert misses.sum() >= fewest_misses(trace.batches, capacity).sum()
    assert np.all(misses <= [batch.size for batch in trace.batches])


def test_facts_are_of_the_batches_from_the_middle_to_the_scan(trace):
    facts = policy.facts_of(trace)
    assert facts["batches"] == len(trace.batches)
    assert facts["measured"] == [27, 54] and facts["scan"][0] == 54
    assert facts["ram_rows"] == trace.num_rows // 10
    seen = set().union(*(batch.tolist() for batch in trace.batches[:27]))
    new = []
    for batch in trace.batches[27:54]:
        new.append(len(set(batch.tolist()) - seen))
        seen |= set(batch.tolist())
    assert facts["new_rows_per_batch"] == pytest.approx(np.mean(new))
    sizes = [batch.size for batch in trace.batches[27:54]]
    assert facts["rows_per_batch"] == pytest.approx(np.mean(sizes))


def test_a_row_holds_the_rates_before_and_after_the_scan(trace):
    sizes = np.array([batch.size for batch in trace.batches])
    misses = np.zeros(len(sizes), np.int64)
    misses[27:44] = sizes[27:44] // 2
    misses[trace.scan_end :] = sizes[trace.scan_end :]
    row = policy.row_of(trace, "lru", misses)
    shares = 1 - misses[27:54] / sizes[27:54]
    assert row["hit_rate"] == pytest.approx(np.mean(shares))
    assert row["misses_per_batch"] == pytest.approx(np.mean(misses[27:54]))
    assert row["after_scan"] == 0.0


def test_small_run_gives_the_promised_json(tmp_path):
    rng = np.random.default_rng(0)
    pairs = rng.zipf(1.2, (4000, 2)) % 300 + 1
    lines = [f"{user}::{movie}::3::{i}" for i, (user, movie) in enumerate(pairs)]
    (tmp_path / "ratings.dat").write_text("\n".join(lines) + "\n")
    result = policy.run(tmp_path, SMALL, num_batches=60, ratings_of_a_batch=32)
    result = json.loads(json.dumps(result))
    assert [facts["name"] for facts in result["traces"]] == ["W4", "MovieLens"]
    offline = ["belady", "belady_8_lru", "belady_8_lfu"]
    names = [row["policy"] for row in result["rows"]]
    assert names == 2 * [*offline, *policy.POLICIES]
    for row in result["rows"]:
        assert 0.0 < row["hit_rate"] < 1.0
    w4 = {row["policy"]: row for row in result["rows"][:6]}
    for name in policy.POLICIES:
        assert set(w4[name]["below"]) == set(offline)
        gap = w4["belady"]["hit_rate"] - w4[name]["hit_rate"]
        assert w4[name]["below"]["belady"] == pytest.approx(100 * gap)
    text = policy.table(result)
    assert "MovieLens: 1" in text and "below belady_8_lru" in text
