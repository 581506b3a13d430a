import json
import re

import numpy as np
import pytest
import tensorflow as tf

from tfctr.bench import lookup
from tfctr.bench.rounds import Turns
from tfctr.bench.workers import lookup_structures
from tfctr.bench.workers.options import Options
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


def test_keys_of_one_hash_are_refused(monkeypatch):
    keys = lookup_structures.Keys.of(SMALL)
    one_hash = np.zeros(SMALL.num_rows, np.uint64)
    monkeypatch.setattr(lookup_structures, "key_hashes", lambda *key: one_hash)
    with pytest.raises(ValueError, match=r"Received: 1 hashes of 1500 keys\. Change"):
        keys.hashes()


def test_a_structure_that_finds_other_rows_is_named(monkeypatch):
    def first_row(keys):
        return lambda ids: tf.ones_like(ids)

    structures = {**lookup_structures.STRUCTURES, "bucketed_hash": first_row}
    monkeypatch.setattr(lookup_structures, "STRUCTURES", structures)
    monkeypatch.setattr(lookup_structures, "limit_threads", lambda threads: None)
    options = Options({"one": SMALL}, lookup.STRUCTURES, (lookup.KIND,))
    # Every id but those of the first row.
    ids = SMALL.batches()[0]
    num_others = np.count_nonzero(np.arange(SMALL.num_fields) + ids)
    message = (
        f"'bucketed_hash' must find the rows that '{lookup.STRUCTURES[0]}' finds. "
        f"Received: other rows of {num_others} of {ids.size} ids."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        lookup_structures.open_cases(options)


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
