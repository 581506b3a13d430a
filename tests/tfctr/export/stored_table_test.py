"""`StoredTable`: a table and its changes are the later table, to the bit."""

import numpy as np
import pytest

from tfctr.export.stock_table import StockTable
from tfctr.export.stored_table import StoredTable, places_of

DIM = 3


def stored(rows, default, quantize=None):
    keys = np.array(list(rows), np.int64).reshape(-1, 2)
    values = np.array(list(rows.values()), np.float32).reshape(-1, DIM)
    table = StockTable("ads", keys, values, default, quantize)
    names = [v.name.split("/")[1].split(":")[0] for v in table.variables]
    return StoredTable(
        {n: v.numpy() for n, v in zip(names, table.variables, strict=True)}
    )


def some_rows(seed, count):
    rng = np.random.default_rng(seed)
    return {
        (int(feature), int(id)): rng.normal(size=DIM)
        for feature, id in zip(
            rng.integers(0, 3, count), rng.integers(-40, 40, count) * 2**55, strict=True
        )
    }


OLD = some_rows(0, 60)
LATER = {
    "the same": OLD,
    "other rows": {**OLD, next(iter(OLD)): np.ones(DIM)},
    "new keys": {**OLD, **some_rows(1, 30)},
    "fewer keys": dict(list(OLD.items())[:-20]),
    "others": some_rows(2, 50),
    "none": {},
}


@pytest.mark.parametrize("quantize", [None, "float16", "int8"])
@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
@pytest.mark.parametrize("is_back", [False, True], ids=["there", "back"])
def test_changes_make_the_later_table(later, quantize, is_back):
    one = stored(OLD, [0.0] * DIM, quantize)
    two = stored(later, [0.5] * DIM, quantize)
    if is_back:
        one, two = two, one
    found = one.with_changes(one.changes_to(two))
    assert found.parts.keys() == two.parts.keys()
    for name, part in two.parts.items():
        np.testing.assert_array_equal(found.parts[name], part, strict=True)


def test_changes_name_what_changed_alone():
    later = {**OLD, (0, 5): np.ones(DIM), next(iter(OLD)): np.full(DIM, np.nan)}
    [gone] = list(OLD)[7:8]
    del later[gone]
    one, two = stored(OLD, [0.0] * DIM), stored(later, [0.0] * DIM)
    changes = one.changes_to(two)
    assert changes["removed"].tolist() == [list(gone)]
    assert set(map(tuple, changes["keys"].tolist())) == {(0, 5), next(iter(OLD))}
    # NaN is equal to itself, and 0 is not -0.
    assert len(two.changes_to(two)["keys"]) == 0
    zero = stored({(0, 0): np.zeros(DIM)}, [0.0] * DIM)
    minus = stored({(0, 0): -np.zeros(DIM)}, [0.0] * DIM)
    assert len(zero.changes_to(minus)["keys"]) == 1


def test_keys_come_in_the_order_of_their_rows():
    keys = stored(OLD, [0.0] * DIM).keys
    assert list(map(tuple, keys.tolist())) == sorted(OLD)
    np.testing.assert_array_equal(places_of(keys, keys), np.arange(len(keys)))
    assert places_of(keys + [[7, 0]], keys).max() == -1
    assert places_of(keys, keys[:0]).max() == -1
