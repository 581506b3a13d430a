import json

import numpy as np
import pytest
import tensorflow as tf

from tfctr.bench import lookup
from tfctr.bench.rounds import Turns
from tfctr.bench.workers import lookup_structures
from tfctr.bench.workload import Workload

SMALL = Workload(num_fields=3, rows_per_field=500, dim=4, batch_size=8, num_batches=4)


@pytest.mark.parametrize("name", list(lookup_structures.STRUCTURES))
def test_structures_find_what_a_dict_holds(name):
    keys = lookup_structures.Keys.of(SMALL)
    pairs = zip(keys.features, keys.ids, strict=True)
    rows = {pair: row for row, pair in enumerate(pairs, 1)}
    find = lookup_structures.STRUCTURES[name](keys)
    ids = np.repeat(np.arange(-5, 600)[:, None], SMALL.num_fields, axis=1)
    expected = [[rows.get((f, i), 0) for f, i in enumerate(line)] for line in ids]
    assert np.count_nonzero(expected) == SMALL.num_rows
    np.testing.assert_array_equal(find(tf.constant(ids)), expected)


def test_small_run_gives_the_promised_json():
    turns = Turns(rounds=2, steps=3)
    result = lookup.run({"one": SMALL}, turns, wait_seconds=0.0)
    result = json.loads(json.dumps(result))
    rows = {row["structure"]: row for row in result["rows"]}
    assert list(rows) == list(lookup.STRUCTURES)
    assert all(row["ms"] > 0 and row["lookups"] == 6 for row in rows.values())
    ratio = rows["sorted_keys"]["ms"] / rows["perfect_hash"]["ms"]
    assert result["ratios"]["one/sorted_keys"] == pytest.approx(ratio)
    assert set(result["intervals"]) == set(result["ratios"])
    text = lookup.table(result)
    assert "static_hash_table" in text and "one/bucketed_hash" in text
