"""The rows of a table, for other programs."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from keras_layers import DynamicEmbedding
from keras_layers.number_checks import is_integer


def vectors(
    layer: DynamicEmbedding, batch_size: int = 1 << 16
) -> Iterator[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Returns the vectors of all ids that were trained or written, in batches.

    Use it to build a nearest-neighbour index, or to hand pretrained vectors to another
    model by `DynamicEmbedding.write_rows`. Ids that were strings come as their
    fingerprints. With a `ShardedStorage` and several ranks, each hands out its own
    rows, of which no two ranks have the same.

    Args:
        layer: `DynamicEmbedding` that has been built.
        batch_size: Integer. How many rows are handed out at most at a time.

    Returns:
        Iterator over the name of the feature (`table/namespace`), ids `(n,)` and
        vectors `(n, dim)`. A feature with many rows comes in several pieces.

    Raises:
        ValueError: If the layer is not built or `batch_size` not positive.

    Example:

    >>> table = TableConfig("ads", dim=2, optimizer=keras.optimizers.SGD())
    >>> layer = DynamicEmbedding(FeatureConfig(table))
    >>> _ = layer(np.array([7]))
    >>> layer.write_rows([7, 9], [[1.0, 2.0], [3.0, 4.0]])
    >>> [(ids.tolist(), rows.tolist()) for _, ids, rows in vectors(layer)]
    [([7, 9], [[1.0, 2.0], [3.0, 4.0]])]
    """
    if not layer.built:
        raise ValueError(
            f"Layer '{layer.name}' has no table yet. Call it once, or build the model, "
            "before exporting its vectors."
        )
    if not is_integer(batch_size) or batch_size < 1:
        raise ValueError(
            "`batch_size` must be a positive integer. "
            f"Received: batch_size={batch_size!r}."
        )
    return layer.export(batch_size)
