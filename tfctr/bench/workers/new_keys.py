"""Keys that are numbers in no order, for tables of one field. NumPy only."""

import numpy as np
import numpy.typing as npt


def new_keys(count: int) -> npt.NDArray[np.int64]:
    """`count` different keys, spread over all of int64."""
    # An odd factor permutes the 64-bit integers.
    spread = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return spread.view(np.int64)


def shuffled_batches(count: int, batch_size: int) -> npt.NDArray[np.int64]:
    """The first of `new_keys(count)` in another order, `(batches, batch_size)`.

    No key is in them twice.
    """
    order = np.random.default_rng(0).permutation(count)
    whole = count // batch_size * batch_size
    keys: npt.NDArray[np.int64] = new_keys(count)[order[:whole]]
    return keys.reshape(-1, batch_size)
