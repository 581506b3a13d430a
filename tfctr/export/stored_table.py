"""`StoredTable`: the rows of a table as an export keeps them, and what changed."""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from keras_layers.storage.storage import KeyPairs
from tfctr.export.key_index import KeyIndex, keys_of_slots
from tfctr.export.stock_table import FIRST_ROW
from tfctr.export.variable_files import Array, bytes_of

_NAME = re.compile(r"tables/(\d+)/_(\w+)/\.ATTRIBUTES/VARIABLE_VALUE")


def table_part(name: str) -> tuple[int, str] | None:
    """Returns the number of the table and the part of it that a variable is.

    `None` is a variable of the model.
    """
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), match[2])


@dataclasses.dataclass(frozen=True)
class StoredTable:
    """The variables of a `StockTable`.

    Args:
        parts: Arrays by name: `pilots`, `slots`, `rows` and, of int8, `scales`. The
            first rows belong to no key; the others follow each other by key.
    """

    parts: Mapping[str, Array]

    @property
    def keys(self) -> KeyPairs:
        """Feature and id of each row, int64 `(n, 2)`, in order."""
        return keys_of_slots(self.parts["slots"], FIRST_ROW)

    def changes_to(self, later: "StoredTable") -> dict[str, Array]:
        """Returns what `with_changes` needs to make `later` of this table."""
        keys, later_keys = self.keys, later.keys
        places = places_of(later_keys, keys)
        differs = places < 0
        known = np.flatnonzero(~differs)
        for name in self._values():
            old, new = (bytes_of(t.parts[name][FIRST_ROW:]) for t in (self, later))
            # Of no rows, the width is not known.
            if len(known) > 0:
                unequal = (old[places[known]] != new[known]).any(axis=1)
                differs[known] |= unequal
        changes = {
            "removed": keys[places_of(keys, later_keys) < 0],
            "keys": later_keys[differs],
        }
        for name in self._values():
            changes[name] = later.parts[name][FIRST_ROW:][differs]
            changes[f"first_{name}"] = later.parts[name][:FIRST_ROW]
        return changes

    def with_changes(self, changes: Mapping[str, Array]) -> "StoredTable":
        """Returns the later table. Without other keys, the index stays as it is."""
        keys = self.keys
        parts = dict(self.parts)
        places = places_of(changes["keys"], keys)
        if len(changes["removed"]) == 0 and (places >= 0).all():
            for name in self._values():
                parts[name] = parts[name].copy()
                parts[name][:FIRST_ROW] = changes[f"first_{name}"]
                parts[name][FIRST_ROW + places] = changes[name]
            return StoredTable(parts)
        stays = np.ones(len(keys), bool)
        stays[places[places >= 0]] = False
        stays[places_of(changes["removed"], keys)] = False
        merged = np.concatenate([keys[stays], changes["keys"]])
        order = np.lexsort((merged[:, 1], merged[:, 0]))
        for name in self._values():
            values = np.concatenate([parts[name][FIRST_ROW:][stays], changes[name]])
            parts[name] = np.concatenate([changes[f"first_{name}"], values[order]])
        index = KeyIndex.of(merged[order, 0], merged[order, 1], FIRST_ROW)
        return StoredTable({**parts, "pilots": index.pilots, "slots": index.slots})

    def is_like(self, other: "StoredTable") -> bool:
        """Returns whether both have rows of the same width and type."""
        mine, others = self._values(), other._values()
        return mine.keys() == others.keys() and all(
            mine[name].dtype == others[name].dtype
            and mine[name].shape[1:] == others[name].shape[1:]
            for name in mine
        )

    def _values(self) -> dict[str, Array]:
        return {n: self.parts[n] for n in ("rows", "scales") if n in self.parts}


def places_of(keys: KeyPairs, among: KeyPairs) -> npt.NDArray[np.int64]:
    """Returns where each of `keys` is in `among`, -1 where it is not.

    Args:
        keys: int64 `(n, 2)`, feature and id.
        among: int64 `(m, 2)`, distinct and in order.
    """
    places = np.full(len(keys), -1)
    features = np.unique(among[:, 0])
    starts = np.searchsorted(among[:, 0], features, "left")
    ends = np.searchsorted(among[:, 0], features, "right")
    for feature, start, end in zip(features, starts, ends, strict=True):
        asked = np.flatnonzero(keys[:, 0] == feature)
        ids = among[start:end, 1]
        found = np.minimum(np.searchsorted(ids, keys[asked, 1]), end - start - 1)
        is_there = ids[found] == keys[asked, 1]
        places[asked[is_there]] = start + found[is_there]
    return places
