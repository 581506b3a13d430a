"""The keys of `bench grow`: never seen before, in no order. NumPy only."""

import numpy as np
import numpy.typing as npt


def new_keys(count: int) -> npt.NDArray[np.int64]:
    """`count` different keys, spread over all of int64."""
    # An odd factor permutes the 64-bit integers.
    spread = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return spread.view(np.int64)
