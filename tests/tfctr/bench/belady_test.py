"""Belady's misses, against those of every other way to evict, on tiny traces."""

import collections
import functools
import itertools

import numpy as np
import pytest

from tfctr.bench.belady import fewest_misses


def random_batches(seed, num_batches, num_rows, most):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, num_batches)
    return [
        rng.choice(num_rows, size, replace=False).astype(np.int32) for size in sizes
    ]


def fewest_of_all_ways(batches, capacity):
    """Tries every set of rows that could be kept after each batch."""
    sets = [frozenset(batch.tolist()) for batch in batches]

    @functools.cache
    def fewest(number, memory):
        if number == len(sets):
            return 0
        others = sorted(memory - sets[number])
        room = max(capacity - len(sets[number]), 0)
        kept = itertools.combinations(others, min(room, len(others)))
        rest = min(fewest(number + 1, sets[number] | set(rows)) for rows in kept)
        return len(sets[number] - memory) + rest

    return fewest(0, frozenset())


@pytest.mark.parametrize("seed", range(60))
def test_no_way_to_evict_misses_fewer_rows(seed):
    capacity = 1 + seed % 5
    # Some batches do not fit.
    batches = random_batches(seed, num_batches=9, num_rows=7, most=4)
    misses = fewest_misses(batches, capacity)
    assert misses.sum() == fewest_of_all_ways(batches, capacity)


@pytest.mark.parametrize("beyond", ["lru", "lfu"])
def test_a_lookahead_to_the_end_is_all_the_future(beyond):
    batches = random_batches(0, num_batches=50, num_rows=30, most=6)
    np.testing.assert_array_equal(
        fewest_misses(batches, 12, lookahead=50, beyond=beyond),
        fewest_misses(batches, 12),
    )


def test_a_longer_lookahead_misses_fewer_rows():
    batches = random_batches(1, num_batches=400, num_rows=200, most=20)
    by_lookahead = [fewest_misses(batches, 60, n).sum() for n in (0, 2, 8, 400)]
    assert by_lookahead == sorted(by_lookahead, reverse=True)
    assert len(set(by_lookahead)) == 4


def misses_of_lru(rows, capacity):
    memory, misses = collections.OrderedDict(), []
    for row in rows:
        misses.append(int(row not in memory))
        memory[row] = None
        memory.move_to_end(row)
        if len(memory) > capacity:
            memory.popitem(last=False)
    return misses


def misses_of_lfu(rows, capacity):
    """Counts last for ever; of equal ones, the row used the longest ago leaves."""
    memory, counts, misses = collections.OrderedDict(), collections.Counter(), []
    for row in rows:
        misses.append(int(row not in memory))
        if row not in memory and len(memory) == capacity:
            memory.pop(min(memory, key=counts.__getitem__))
        counts[row] += 1
        memory[row] = None
        memory.move_to_end(row)
    return misses


@pytest.mark.parametrize(
    ("beyond", "model"), [("lru", misses_of_lru), ("lfu", misses_of_lfu)]
)
def test_without_lookahead_it_is_the_policy_that_it_falls_back_to(beyond, model):
    rows = np.random.default_rng(2).zipf(1.3, 3000) % 100
    batches = [np.array([row], np.int32) for row in rows]
    misses = fewest_misses(batches, 20, lookahead=0, beyond=beyond)
    assert misses.tolist() == model(rows.tolist(), 20)


def test_a_batch_above_the_capacity_is_held_and_leaves_with_the_next():
    batches = [np.array(ids, np.int32) for ids in ([0, 1, 2], [0], [1], [0])]
    assert fewest_misses(batches, capacity=1).tolist() == [3, 0, 1, 1]


def test_a_trace_without_batches_has_no_misses():
    assert fewest_misses([], capacity=3).tolist() == []
