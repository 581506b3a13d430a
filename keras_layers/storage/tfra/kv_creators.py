"""What TFRA is told to make its tables of."""

import contextlib
import json
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from keras_layers.storage.tfra.import_guard import import_tfra

CREATORS = ("cuckoo", "hkv", "redis")
# Rows that a table of HKV makes room for at first.
_FIRST_CAPACITY = 2**20
_REDIS = {
    "redis_connection_mode": 2,  # A single server.
    "table_store_mode": 0,  # Exported rows come back as tensors.
}


@contextlib.contextmanager
def kv_creator(
    creator: str,
    capacity: int | None,
    hbm_bytes: int | None,
    redis: Mapping[str, Any] | None,
) -> Iterator[Any]:
    """Gives one of TFRA's `KVCreator`s, to make tables with inside of the context.

    Args:
        creator: String, of `CREATORS`.
        capacity: Integer. How many rows each table of `"hkv"` may have.
        hbm_bytes: Integer. GPU memory for the rows of each.
        redis: Settings of `"redis"`.
    """
    de = import_tfra()
    if creator == "cuckoo":
        yield de.CuckooHashTableCreator()
    elif creator == "hkv":
        # All three: by themselves tables have a million rows, and the others vanish.
        yield de.HkvHashTableCreator(
            de.HkvHashTableConfig(
                init_capacity=min(capacity or _FIRST_CAPACITY, _FIRST_CAPACITY),
                max_capacity=capacity,
                max_hbm_for_values=hbm_bytes,
            )
        )
    else:
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "redis.json"
            path.write_text(json.dumps({**_REDIS, **(redis or {})}))
            yield de.RedisTableCreator(de.RedisTableConfig(str(path)))
