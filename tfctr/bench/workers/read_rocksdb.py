"""RocksDB through `rocksdict`: the same rows, read by its multi-get.

Rows of 144 bytes under keys of 8 are as many bytes as ours. They come sorted, in files
of the size that RocksDB's own compaction makes, so there is one level and nothing left
to compact. No compression, a Bloom filter, and a block cache that holds everything:
what it reads are its own blocks in memory. `rocksdict` returns a list of bytes, of
which the weights are put into one array, as ours are. It is in an environment of its
own, which `make peers` makes, and so unknown to the type checker here.
"""

import importlib.metadata
import pathlib

import numpy as np
import numpy.typing as npt
import rocksdict  # type: ignore[import-not-found]

from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.new_keys import new_keys, shuffled_batches
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import Workload

VALUE_BYTES = 144
KEYS_IN_FILE = 400_000
# More than the bytes of the rows, for what the blocks hold beside them.
CACHE_FACTOR = 2
WARM_UP = 8


def make_options(workload: Workload) -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    table = rocksdict.BlockBasedOptions()
    num_bytes = workload.num_rows * (8 + VALUE_BYTES)
    table.set_block_cache(rocksdict.Cache(CACHE_FACTOR * num_bytes))
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options


def make_database(workload: Workload, directory: pathlib.Path) -> rocksdict.Rdict:
    options = make_options(workload)
    keys = sorted(key_bytes(new_keys(workload.num_rows)))
    value = np.random.default_rng(0).bytes(VALUE_BYTES)
    files = []
    for start in range(0, len(keys), KEYS_IN_FILE):
        files.append(str(directory / f"{start}.sst"))
        writer = rocksdict.SstFileWriter(options=options)
        writer.open(files[-1])
        for key in keys[start : start + KEYS_IN_FILE]:
            writer[key] = value
        writer.finish()
    database = rocksdict.Rdict(str(directory / "database"), options)
    database.ingest_external_file(files)
    return database


def key_bytes(keys: npt.NDArray[np.int64]) -> list[bytes]:
    """Each key as RocksDB takes it."""
    text = keys.tobytes()
    return [text[i : i + 8] for i in range(0, len(text), 8)]


def read_step(database: rocksdict.Rdict, workload: Workload) -> Step:
    batches = [
        key_bytes(keys)
        for keys in shuffled_batches(workload.num_rows, workload.batch_size)
    ]

    def step(i: int) -> npt.NDArray[np.float32]:
        values = b"".join(database[batches[i % len(batches)]])
        rows = np.frombuffer(values, np.float32).reshape(-1, VALUE_BYTES // 4)
        return rows[:, : workload.dim].copy()

    return step


def open_cases(options: Options) -> Cases:
    (case,) = options.cases()
    directory = pathlib.Path(options.storage["ssd"])
    database = make_database(case.workload, directory)
    return Cases(
        steps={case.name: read_step(database, case.workload)},
        versions={"rocksdict": importlib.metadata.version("rocksdict")},
        warm_up=WARM_UP,
    )
