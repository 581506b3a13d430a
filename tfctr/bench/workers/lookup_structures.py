"""Structures in which an export could find the rows of its keys, of built-in ops alone.

Each maps ids `(batch, fields)` of known features to the numbers of their rows, and
compares the whole key: an id that has no row finds row 0. What is timed is that, and
the gather of the rows.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import Options
from tfctr.bench.workers.tensorflow_setup import id_tensors, limit_threads
from tfctr.bench.workload import Workload
from tfctr.export.key_index import MULTIPLIERS, key_hashes, seeded_multipliers
from tfctr.export.stock_table import StockTable

WARM_UP = 20
_FIRST_ROW = 1
_BUCKET_WIDTH = 4
# Keys that choose their bucket at once, by what the buckets held before.
_CHUNKS = 256

Find = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys of a workload: `features` and `ids`, each `(n,)`, in the order of rows."""

    features: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    num_fields: int

    @classmethod
    def of(cls, workload: Workload) -> "Keys":
        fields = np.arange(workload.num_fields)
        column = np.arange(workload.rows_per_field)
        return cls(
            np.repeat(fields, len(column)),
            np.tile(column, len(fields)),
            workload.num_fields,
        )

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Of every key, distinct."""
        hashes = key_hashes(self.features, self.ids, 0)
        if len(np.unique(hashes)) < len(hashes):
            raise ValueError(
                "The keys of a workload must have distinct hashes. Received: "
                f"{len(np.unique(hashes))} hashes of {len(hashes)} keys. Change "
                "`rows_per_field`."
            )
        return hashes

    def slots(self) -> npt.NDArray[np.int64]:
        """Of every key `[feature + 1, id, row]`, `(n, 3)`."""
        rows = np.arange(len(self.ids)) + _FIRST_ROW
        return np.stack([self.features + 1, self.ids, rows], axis=1)

    def hash_in_graph(self, ids: tf.Tensor) -> tf.Tensor:
        """What `hashes` holds, of ids `(batch, fields)`."""
        a, b = seeded_multipliers(0)
        added = np.arange(1, self.num_fields + 1).astype(np.uint64) * np.uint64(a)
        return (tf.bitcast(ids, tf.uint64) + added) * tf.constant(b, tf.uint64)

    def matching_rows(self, slots: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """The row of each slot `(..., 3)` if it holds the key there, and else 0."""
        features, ids_there, rows = tf.unstack(slots, axis=-1)
        wanted = np.arange(1, self.num_fields + 1)
        wanted = wanted.reshape([-1] + [1] * (len(slots.shape) - 3))
        ids = tf.reshape(ids, [-1, self.num_fields] + [1] * (len(slots.shape) - 3))
        return tf.where((features == wanted) & (ids_there == ids), rows, 0)


def sorted_keys(keys: Keys) -> Find:
    """Hashes in order, a binary search, and the whole key there."""
    hashes = keys.hashes().view(np.int64)
    order = np.argsort(hashes)
    column = tf.Variable(hashes[order], trainable=False)
    slots = tf.Variable(keys.slots()[order], trainable=False)

    def find(ids: tf.Tensor) -> tf.Tensor:
        wanted = tf.bitcast(keys.hash_in_graph(ids), tf.int64)
        places = tf.searchsorted(column, tf.reshape(wanted, [-1]))
        places = tf.minimum(places, len(order) - 1)
        there = tf.gather(slots, tf.reshape(places, tf.shape(ids)))
        return keys.matching_rows(there, ids)

    return find


def static_hash_table(keys: Keys) -> Find:
    """`tf.lookup.StaticHashTable` from hashes to places, and the whole key there."""
    hashes = keys.hashes().view(np.int64)
    places = np.arange(len(hashes))
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(hashes, places), default_value=0
    )
    slots = tf.Variable(keys.slots(), trainable=False)

    def find(ids: tf.Tensor) -> tf.Tensor:
        wanted = tf.bitcast(keys.hash_in_graph(ids), tf.int64)
        return keys.matching_rows(tf.gather(slots, table.lookup(wanted)), ids)

    return find


def bucketed_hash(keys: Keys) -> Find:
    """Buckets of fixed width, of which a key may be in either of two."""
    hashes = keys.hashes()
    bits = max((len(hashes) // _BUCKET_WIDTH).bit_length(), 1)
    while (chosen := _choose_buckets(hashes, bits)) is None:
        bits += 1
    order = np.argsort(chosen, kind="stable")
    starts = np.searchsorted(chosen[order], np.arange(1 << bits))
    within = np.arange(len(order)) - starts[chosen[order]]
    buckets = np.zeros((1 << bits, _BUCKET_WIDTH, 3), np.int64)
    buckets[chosen[order], within] = keys.slots()[order]
    variable = tf.Variable(buckets, trainable=False)

    def find(ids: tf.Tensor) -> tf.Tensor:
        first = keys.hash_in_graph(ids)
        second = first * tf.constant(MULTIPLIERS[2], tf.uint64)
        both = tf.bitwise.right_shift(
            tf.stack([first, second], axis=-1), tf.constant(64 - bits, tf.uint64)
        )
        there = tf.gather(variable, tf.bitcast(both, tf.int64))
        # The two buckets of a key may be one and the same.
        return tf.reduce_max(keys.matching_rows(there, ids), axis=[-2, -1])

    return find


def _choose_buckets(
    hashes: npt.NDArray[np.uint64], bits: int
) -> npt.NDArray[np.int64] | None:
    """Returns the bucket of each key, the emptier of its two; `None` if one is full."""
    shift = np.uint64(64 - bits)
    both = np.stack([hashes >> shift, (hashes * np.uint64(MULTIPLIERS[2])) >> shift])
    both = both.astype(np.int64)
    held = np.zeros(1 << bits, np.int64)
    chosen = np.empty(len(hashes), np.int64)
    for part in np.array_split(np.arange(len(hashes)), _CHUNKS):
        first, second = both[:, part]
        chosen[part] = np.where(held[first] <= held[second], first, second)
        np.add.at(held, chosen[part], 1)
    return chosen if held.max() <= _BUCKET_WIDTH else None


STRUCTURES: dict[str, Callable[[Keys], Find]] = {
    "sorted_keys": sorted_keys,
    "static_hash_table": static_hash_table,
    "bucketed_hash": bucketed_hash,
}


def readers(workload: Workload) -> dict[str, Callable[[], Callable[..., tf.Tensor]]]:
    """Of each way, what makes a function from ids to rows `(batch, fields, dim)`."""
    keys = Keys.of(workload)
    rng = np.random.default_rng(workload.seed)
    rows = rng.standard_normal((workload.num_rows, workload.dim), np.float32)
    dim = workload.dim

    def gather_alone() -> Callable[..., tf.Tensor]:
        variable = tf.Variable(rows, trainable=False)
        offsets = workload.offsets()
        return lambda ids: tf.gather(variable, ids + offsets)

    def perfect_hash() -> Callable[..., tf.Tensor]:
        pairs = np.stack([keys.features, keys.ids], axis=1)
        table = StockTable("rows", pairs, rows, [0.0] * dim)
        fields = tf.range(workload.num_fields)
        return lambda ids: tf.reshape(
            table.read(tf.reshape(ids, [-1]), fields), [-1, workload.num_fields, dim]
        )

    def with_find(structure: Callable[[Keys], Find]) -> Callable[..., tf.Tensor]:
        find = structure(keys)
        padded = np.concatenate([np.zeros((_FIRST_ROW, dim), np.float32), rows])
        variable = tf.Variable(padded, trainable=False)
        return lambda ids: tf.gather(variable, find(ids))

    return {
        "gather_alone": gather_alone,
        "perfect_hash": perfect_hash,
        **{
            name: functools.partial(with_find, structure)
            for name, structure in STRUCTURES.items()
        },
    }


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    (workload,) = options.workloads.values()
    requests = id_tensors(workload)
    steps: dict[str, Step] = {}
    seconds = {}
    made = readers(workload)
    expected = None
    for case in options.cases():
        start = time.perf_counter()
        read = tf.function(
            made[case.optimizer](),
            input_signature=[tf.TensorSpec([None, workload.num_fields], tf.int64)],
        )
        found = read(requests[0]).numpy()
        seconds[case.optimizer] = time.perf_counter() - start
        expected = found if expected is None else expected
        # Times of structures that do not find the same would say nothing.
        is_other = np.any(found != expected, axis=-1)
        if is_other.any():
            raise ValueError(
                f"'{case.optimizer}' must find the rows that '{options.optimizers[0]}' "
                f"finds. Received: other rows of {is_other.sum()} of {is_other.size} "
                "ids. Correct the structure."
            )
        steps[case.name] = _step_of(read, requests)
    return Cases(
        steps,
        {"tensorflow": tf.__version__},
        WARM_UP,
        facts=lambda: {"build_seconds": seconds},
    )


def _step_of(read: Any, requests: list[tf.Tensor]) -> Step:
    return lambda i: read(requests[i % len(requests)]).numpy()
