"""64-bit hashing of integers in NumPy: the one source of chance in `tfctr.data`.

Splits, shuffles and synthetic examples are pure functions of their inputs. They are
hashed here rather than drawn from a `numpy.random.Generator`, whose streams may
change between NumPy versions: a resumed run must see the same examples.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.integer[Any]]

# 2**64 / golden ratio, odd: keeps all-zero parts away from 0, mix64's fixed point.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix64(values: UInt64s) -> UInt64s:
    """Scrambles 64-bit values; distinct values stay distinct.

    The finalizer of SplitMix64 (Steele et al., 2014, "Fast splittable pseudorandom
    number generators"): a bijection in which every input bit changes every output
    bit with a chance of about one half.
    """
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def hash64(*parts: int | str | Integers) -> UInt64s:
    """Hashes tuples: `h = mix64((h + golden) ^ part)` over the parts, from h = 0.

    A string as the first part names the purpose. Two purposes with one seed then never
    see the same chance: an order that is drawn like the labels would sort by them.

    Args:
        parts: Integers (taken modulo 2**64), strings, or integer arrays, broadcast
            together.

    Returns:
        Array of hashes in the broadcast shape; of shape `(1,)` without arrays. Tuples
        that differ in their last part only have distinct hashes.
    """
    hashes = np.zeros(1, np.uint64)
    for part in parts:
        if isinstance(part, str):
            digest = hashlib.blake2b(part.encode(), digest_size=8).digest()
            column = np.array([int.from_bytes(digest, "little")], np.uint64)
        elif isinstance(part, int):
            column = np.array([part % 2**64], np.uint64)
        else:
            column = part.astype(np.uint64, copy=False)
        hashes = mix64((hashes + _GOLDEN) ^ column)
    return hashes


def to_unit(hashes: UInt64s) -> npt.NDArray[np.float64]:
    """Maps hashes to [0, 1), uniformly: the upper 53 bits, as a fraction."""
    return (hashes >> np.uint64(11)) * 2.0**-53
