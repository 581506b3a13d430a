"""Models whose tables are on several ranks, in one file or one memory."""

import os
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_layers.dynamic_embedding import layers_of
from keras_layers.storage.storage import KeyPairs, Table, Vectors
from tfctr.distributed import engine
from tfctr.distributed.sharded_storage import ShardedTable


def save_model(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Does `model.save(path)` for a model with sharded tables. Collective.

    The rows of all ranks pass through the memory of rank 0, which writes the file; the
    `save_limit` of a layer bounds the share of a rank. Alone, it is `model.save`.

    Args:
        model: Keras model.
        path: Path that ends in `.keras`.

    Raises:
        ValueError: If a table has an admission, or is beyond the `save_limit`.
        OSError: If rank 0 could not save, on the others.

    Example:

    >>> import os, tempfile
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     save_model(model, f"{directory}/model.keras")
    ...     os.listdir(directory)
    ['model.keras']
    """
    tables = [
        table
        for layer in layers_of(model)
        for table in layer.tables.values()
        if isinstance(table, ShardedTable)
    ]
    error: Exception | None = None
    try:
        for table in tables:
            table.gather_rows()
        if engine.is_main():
            model.save(path)
    except Exception as raised:  # The others wait to hear of it.
        error = raised
    finally:
        for table in tables:
            table.forget_gathered()
    # Nobody reads the file before it is there.
    texts = engine.gather_objects(error and str(error), "saved.model")
    if error is not None:
        raise error
    if texts[0] is not None:
        raise OSError(f"Rank 0 could not save the model to '{path}': {texts[0]}")


def gather_vectors(
    table: Table, dim: int, batch_size: int = 1 << 16
) -> tuple[KeyPairs, Vectors]:
    """Returns all keys and weights of a table, without slots. Collective.

    Args:
        table: `Table`, of any storage.
        dim: Integer. Its width.
        batch_size: Integer. How many rows are taken out at a time.

    Returns:
        Keys `(n, 2)`, feature and id, and weights `(n, dim)`; of a table whose rows are
        on several ranks, all of them on rank 0 and none on the others.
    """
    batches = list(table.export(batch_size))
    keys = [np.zeros((0, 2), np.int64), *(keys for keys, _ in batches)]
    rows = [np.zeros((0, dim), np.float32), *(rows for _, rows in batches)]
    own = np.concatenate(keys), np.concatenate(rows)
    return _to_main(table, own[0], "keys"), _to_main(table, own[1], "vectors")


def gather_counts(table: Table) -> tuple[KeyPairs, npt.NDArray[np.int64]]:
    """Returns all keys of a table, and how many updates their rows have seen.

    Collective. All rows of this process pass through its memory.

    Args:
        table: `Table`, of any storage.

    Returns:
        Keys `(n, 2)`, feature and id, and counts, int64 `(n,)`; of a table whose rows
        are on several ranks, all of them on rank 0 and none on the others.
    """
    rows = table.own_rows()
    ids, features = np.asarray(rows.ids), np.asarray(rows.features)
    keys = np.stack([features.astype(np.int64), ids], axis=1)
    counts = np.asarray(rows.counts)
    return _to_main(table, keys, "keys"), _to_main(table, counts, "counts")


def _to_main(table: Table, own: Any, what: str) -> Any:
    """Returns the array of all ranks, one behind the other, on rank 0."""
    if not isinstance(table, ShardedTable):
        return own
    # The others have no use for it.
    sizes = tf.constant([len(own), *[0] * (engine.size() - 1)], tf.int32)
    name = f"{table.name}.gathered.{what}"
    return np.asarray(engine.all_to_all(tf.constant(own), sizes, name)[0])
