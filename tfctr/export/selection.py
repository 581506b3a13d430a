"""Which rows an export keeps that must not take more than so many bytes."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_layers.storage.storage import KeyPairs

# Of a key in the index, at most; see `KeyIndex`.
KEY_BYTES = 24


class Usage(NamedTuple):
    """How much a table was trained.

    Attributes:
        keys: int64 `(n, 2)`: feature and id, all distinct.
        counts: int64 `(n,)`. How many updates the row of each key has seen.
        row_bytes: Integer. What a row takes in the export, with its key.
    """

    keys: KeyPairs
    counts: npt.NDArray[np.int64]
    row_bytes: int


def most_used(
    tables: Mapping[str, Usage], max_bytes: int
) -> tuple[dict[str, KeyPairs], dict[str, float]]:
    """Returns the keys with the most updates for their bytes, over all tables together.

    Args:
        tables: `Usage` of each, by name.
        max_bytes: Integer. Of all rows that are kept.

    Returns:
        The keys to keep in each table, and of each the share of its updates that they
        have seen, 1 if there were none.
    """
    usages = list(tables.values())
    lengths = [len(usage.counts) for usage in usages]
    sizes = np.repeat([usage.row_bytes for usage in usages], lengths)
    counts = np.concatenate([usage.counts for usage in usages])
    # Of equal ones, the smaller key, whatever order the ranks hand them out in.
    all_keys = np.concatenate([usage.keys for usage in usages])
    order = np.lexsort((all_keys[:, 1], all_keys[:, 0], -counts / sizes))
    stays = np.zeros(len(counts), bool)
    stays[order] = np.cumsum(sizes[order]) <= max_bytes
    keys, shares = {}, {}
    starts = np.cumsum([0, *lengths])
    for start, (name, usage) in zip(starts, tables.items(), strict=False):
        own = stays[start : start + len(usage.counts)]
        keys[name] = usage.keys[own]
        total = int(usage.counts.sum())
        shares[name] = int(usage.counts[own].sum()) / total if total else 1.0
    return keys, shares


def is_among(keys: KeyPairs, others: KeyPairs) -> npt.NDArray[np.bool_]:
    """Returns which of `keys`, `(n, 2)`, are among `others`; both are distinct."""
    pair = np.dtype([("feature", np.int64), ("id", np.int64)])
    left, right = (np.ascontiguousarray(k).view(pair).ravel() for k in (keys, others))
    _, places, _ = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    found = np.zeros(len(keys), bool)
    found[places] = True
    return found


def row_bytes(dim: int, quantize: str | None) -> int:
    """Returns what a row takes in an export, with its key."""
    weight = {None: 4, "float16": 2, "int8": 1}[quantize]
    scale = 4 if quantize == "int8" else 0
    return dim * weight + scale + KEY_BYTES
