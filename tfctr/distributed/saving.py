"""`save_model`: a model whose tables are on several ranks, in one file."""

import os

import keras

from keras_layers.dynamic_embedding import layers_of
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
