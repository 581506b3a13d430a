"""Hashes against the published SplitMix64 stream and plain Python integers."""

import hashlib

import numpy as np

from tfctr.data.hashing import hash64, mix64, to_unit

GOLDEN = 0x9E3779B97F4A7C15


def python_mix64(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def python_hash64(*parts):
    value = 0
    for part in parts:
        if isinstance(part, str):
            digest = hashlib.blake2b(part.encode(), digest_size=8).digest()
            part = int.from_bytes(digest, "little")
        value = python_mix64((value + GOLDEN) % 2**64 ^ part % 2**64)
    return value


def test_mix64_continues_the_published_splitmix64_stream_of_seed_0():
    states = np.array([GOLDEN * i % 2**64 for i in (1, 2, 3)], np.uint64)
    assert mix64(states).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_mix64_leaves_its_argument_alone():
    values = np.array([1, 2], np.uint64)
    mix64(values)
    assert values.tolist() == [1, 2]


def test_hash64_is_frozen():
    assert hash64(1, 2).tolist() == [0x51B01D53CA27E54D]
    assert hash64("order", 7).tolist() == [0xF1A59AC5BBCD5AB8]
    assert hash64(-1).tolist() == [0xDE0A564CBCD060C4]


def test_hash64_of_arrays_equals_plain_python():
    rows, columns = np.array([[3], [-(2**63)]]), np.array([0, 5, 2**63 - 1])
    expected = [
        [python_hash64("test", 7, int(row), int(column)) for column in columns]
        for row in rows[:, 0]
    ]
    assert hash64("test", 7, rows, columns).tolist() == expected


def test_last_part_alone_never_collides():
    assert len(np.unique(hash64("any", np.arange(100_000)))) == 100_000


def test_to_unit_covers_the_unit_interval_without_its_end():
    ends = to_unit(np.array([0, 2**63, 2**64 - 1], np.uint64))
    assert ends.tolist() == [0.0, 0.5, 1 - 2.0**-53]


def test_hashes_are_uniform():
    counts, _ = np.histogram(to_unit(hash64(1, np.arange(100_000))), 10, (0, 1))
    # Six standard deviations of a binomial count: sqrt(100,000 * 0.1 * 0.9) = 95.
    assert np.abs(counts - 10_000).max() < 570
