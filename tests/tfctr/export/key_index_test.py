"""`KeyIndex`: every key where the formula says, and nothing else."""

import numpy as np
import pytest

from tfctr.export.key_index import ROW_BITS, KeyIndex

A, B, C = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
FIRST = 2


def find(index, feature, id):
    """The row of a key by the formula of the class, in whole numbers; or `None`."""
    size = 2**64
    odd = 2 * index.seed + 1
    h = (id + (feature + 1) * odd * A) * odd * B % size
    bits = len(index.pilots).bit_length() - 1
    pilot = int(index.pilots[h >> 64 - bits])
    place = (h ^ pilot) * C % size >> 32
    id_there, word = index.slots[place * len(index.slots) >> 32].tolist()
    found = id_there == id and word >> ROW_BITS == feature + 1
    return word % 2**ROW_BITS if found else None


def random_ids(count):
    return np.random.default_rng(0).integers(-(2**63), 2**63 - 1, count)


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(3000),
        np.arange(3000) << 36,
        -np.arange(3000),
        random_ids(3000),
        np.array([0, -1, 2**63 - 1, -(2**63)]),
        np.array([7]),
        np.arange(256) << 56,
        (np.arange(64) << 58)[:, np.newaxis].repeat(64, 1).ravel()
        + np.tile(np.arange(64), 64),
    ],
    ids=[
        "small",
        "high bits",
        "negative",
        "random",
        "extremes",
        "one",
        "highest bits",
        "both ends",
    ],
)
def test_every_key_is_found_and_no_other(ids):
    features = np.arange(len(ids)) % 3
    index = KeyIndex.of(features, ids, FIRST)
    keys = list(zip(features.tolist(), ids.tolist(), strict=True))
    assert [find(index, *key) for key in keys[:500]] == list(
        range(FIRST, FIRST + len(keys[:500]))
    )
    others = {(f + 1, id) for f, id in keys} | {(0, 123456789), (2, 0)}
    assert all(find(index, *key) is None for key in others - set(keys))


def test_equal_ids_of_many_features_are_keys_of_their_own():
    features = np.arange(2000)
    index = KeyIndex.of(features, np.zeros(2000, np.int64), FIRST)
    assert [find(index, feature, 0) for feature in range(2000)] == list(
        range(FIRST, FIRST + 2000)
    )


def test_keys_whose_hashes_are_equal_get_another_seed():
    """Of random ids, as fingerprints are, one in 2**64 pairs of features is such."""
    other = (12345 - A + 2**63) % 2**64 - 2**63
    ids = np.array([12345, other])
    index = KeyIndex.of(np.array([0, 1]), ids, FIRST)
    assert index.seed > 0
    assert [find(index, f, id) for f, id in enumerate(ids.tolist())] == [2, 3]
    assert find(index, 1, 12345) is find(index, 0, other) is None


def test_without_keys_nothing_is_found():
    index = KeyIndex.of(np.zeros(0, np.int64), np.zeros(0, np.int64), FIRST)
    assert all(find(index, feature, id) is None for feature in (0, 1) for id in (0, 5))


def test_it_takes_little_memory():
    index = KeyIndex.of(np.zeros(10_000, np.int64), random_ids(10_000), FIRST)
    assert index.pilots.nbytes + index.slots.nbytes < 24 * 10_000


def test_equal_keys_are_refused():
    message = "distinct. Received: 3 keys of which some are equal"
    with pytest.raises(ValueError, match=message):
        KeyIndex.of(np.array([0, 1, 0]), np.array([5, 5, 5]), FIRST)


def test_too_many_keys_are_refused():
    many = np.broadcast_to(np.int64(0), 2**30 + 1)
    message = r"at most 2\*\*30 keys. Received: 1073741825 keys. Spread"
    with pytest.raises(ValueError, match=message):
        KeyIndex.of(many, many, FIRST)
