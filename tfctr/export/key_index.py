"""`KeyIndex`: where each key's row is, as arrays that built-in ops can search."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]

# Odd, with bits that look random: those of SplitMix64.
MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
# A slot holds the id, and a word with the feature plus 1, so that 0 is no key, above
# the number of the row.
ROW_BITS = 40
# At most; a power of two of buckets takes a shift to choose from.
_KEYS_PER_BUCKET = 5
_MAX_KEYS_PER_BUCKET = 40
_LOAD = 0.8
_MAX_TRIALS = 1 << 14
_MAX_SEEDS = 8
_SIZE = 1 << 64


@dataclasses.dataclass(frozen=True)
class KeyIndex:
    """A perfect hash of keys (feature, id): no two of them share a slot.

    With all numbers modulo 2⁶⁴, `>>` a shift that brings in zeros, a, b, c the
    `MULTIPLIERS` and 2ᵏ pilots:

        h = (id + (feature + 1) (2 seed + 1) a) (2 seed + 1) b
        bucket = h >> (64 - k)
        slot = ((((h ^ pilots[bucket]) c) >> 32) num_slots) >> 32

    The pilot of each bucket is chosen so that its few keys get slots that no other key
    has. A lookup is two gathers, of a pilot and of a slot, and a comparison with the
    full key: what is found is exact. (Belazzougui, Botelho and Dietzfelbinger, 2009,
    "Hash, displace, and compress".)

    Args:
        seed: Integer.
        pilots: uint64 `(2ᵏ,)`, k at least 1.
        slots: int64 `(num_slots, 2)`: the id, and `(feature + 1) << 40 | row`; 0 in
            slots without a key.
    """

    seed: int
    pilots: UInt64s
    slots: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls, features: npt.NDArray[Any], ids: npt.NDArray[np.int64], first_row: int
    ) -> "KeyIndex":
        """Makes the index of keys whose rows follow each other.

        Args:
            features: Integers `(n,)`, not negative.
            ids: int64 `(n,)`.
            first_row: Integer. The row of the first key.

        Raises:
            ValueError: If a key comes twice, or there are more than 2³⁰.
        """
        if len(ids) > 2**30:
            raise ValueError(
                "A table of an export holds at most 2**30 keys. "
                f"Received: {len(ids)} keys. Spread the features over several tables."
            )
        words = (features.astype(np.int64) + 1) << ROW_BITS
        words |= np.arange(first_row, first_row + len(ids))
        bucket_bits = max((len(ids) // _KEYS_PER_BUCKET).bit_length(), 1)
        num_slots = int(len(ids) / _LOAD) + 1
        for seed in range(_MAX_SEEDS):
            hashes = key_hashes(features, ids, seed)
            found = _place(hashes, bucket_bits, num_slots)
            if found is not None:
                pilots, places = found
                slots = np.zeros((num_slots, 2), np.int64)
                slots[places, 0] = ids
                slots[places, 1] = words
                return cls(seed, pilots, slots)
            _refuse_equal(features, ids)
        raise RuntimeError(
            f"No perfect hash was found of {len(ids)} keys. This is an error of tfctr."
        )


def _refuse_equal(features: npt.NDArray[Any], ids: npt.NDArray[np.int64]) -> None:
    order = np.lexsort((ids, features))
    features, ids = features[order], ids[order]
    if ((features[1:] == features[:-1]) & (ids[1:] == ids[:-1])).any():
        raise ValueError(
            f"The keys of a table must be distinct. Received: {len(ids)} keys of which "
            "some are equal."
        )


def keys_of_slots(
    slots: npt.NDArray[np.int64], first_row: int
) -> npt.NDArray[np.int64]:
    """Returns feature and id of every row, int64 `(n, 2)`, of the slots of an index."""
    ids, words = slots[slots[:, 1] != 0].T
    keys = np.empty((len(ids), 2), np.int64)
    rows = (words & ((1 << ROW_BITS) - 1)) - first_row
    keys[rows, 0] = (words >> ROW_BITS) - 1
    keys[rows, 1] = ids
    return keys


def key_hashes(
    features: npt.NDArray[Any], ids: npt.NDArray[np.int64], seed: int
) -> UInt64s:
    """Returns h of every key; see `KeyIndex`."""
    feature_multiplier, multiplier = seeded_multipliers(seed)
    hashes = (features.astype(np.uint64) + np.uint64(1)) * np.uint64(feature_multiplier)
    hashes += ids.view(np.uint64)
    hashes *= np.uint64(multiplier)
    return hashes


def seeded_multipliers(seed: int) -> tuple[int, int]:
    """Returns (2 seed + 1) a and (2 seed + 1) b; see `KeyIndex`."""
    a, b = ((2 * seed + 1) * each % _SIZE for each in MULTIPLIERS[:2])
    return a, b


def _slots_of(hashes: UInt64s, pilot: int, num_slots: int) -> UInt64s:
    mixed = (hashes ^ np.uint64(pilot)) * np.uint64(MULTIPLIERS[2])
    return ((mixed >> np.uint64(32)) * np.uint64(num_slots)) >> np.uint64(32)


def _place(
    hashes: UInt64s, bucket_bits: int, num_slots: int
) -> tuple[UInt64s, UInt64s] | None:
    """Returns the pilot of each bucket and the slot of each key; `None` if it fails.

    Large buckets come first, while there is room. All buckets of one size try a pilot
    at once, and those whose slots are free and nobody else's keep it.
    """
    buckets = (hashes >> np.uint64(64 - bucket_bits)).astype(np.int64)
    num_buckets = 1 << bucket_bits
    order = np.argsort(buckets, kind="stable")
    sizes = np.bincount(buckets, minlength=num_buckets)
    starts = np.cumsum(sizes) - sizes
    pilots = np.zeros(num_buckets, np.uint64)
    places = np.zeros(len(hashes), np.uint64)
    taken = np.zeros(num_slots, bool)
    claims = np.zeros(num_slots, np.int64)
    for size in range(int(sizes.max()), 0, -1):
        waiting = np.flatnonzero(sizes == size)
        keys = order[starts[waiting, np.newaxis] + np.arange(size)]
        # With so many in a bucket, another seed is the better chance.
        if size > _MAX_KEYS_PER_BUCKET:
            return None
        for trial in range(_MAX_TRIALS):
            if len(waiting) == 0:
                break
            pilot = trial * MULTIPLIERS[0] % _SIZE
            slots = _slots_of(hashes[keys], pilot, num_slots)
            fits = _fitting(slots, taken, claims)
            pilots[waiting[fits]] = pilot
            places[keys[fits]] = slots[fits]
            taken[slots[fits]] = True
            waiting, keys = waiting[~fits], keys[~fits]
        if len(waiting) > 0:
            return None
    return pilots, places


def _fitting(
    slots: UInt64s, taken: npt.NDArray[np.bool_], claims: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Returns which of the buckets, with slots `(buckets, keys)`, can have them.

    Args:
        slots: uint64 `(buckets, keys)`.
        taken: bool `(num_slots,)`.
        claims: int64 `(num_slots,)`. Scratch space.
    """
    free = np.flatnonzero(~taken[slots].any(axis=1))
    wanted = slots[free]
    # Who writes last has the slot. Each key claims by itself, so that two of one bucket
    # cannot share it either.
    names = np.arange(wanted.size).reshape(wanted.shape)
    claims[wanted] = names
    fits = np.zeros(len(slots), bool)
    fits[free[(claims[wanted] == names).all(axis=1)]] = True
    return fits
