"""`epoch_order`: in which order an epoch visits the examples of a split."""

import numpy as np
import numpy.typing as npt

from tfctr.data.hashing import hash64

SPLITS = ("train", "test")


def epoch_order(
    num_examples: int, seed: int | None, epoch: int, split: str
) -> npt.NDArray[np.int64]:
    """Returns the order of one epoch: a permutation of `range(num_examples)`.

    A pure function of its arguments, the same on every machine, so that a run can
    resume in epoch 7 without having shuffled epochs 0 to 6.

    Args:
        num_examples: Integer. Length of the order.
        seed: Integer. `None` means the order of the log itself.
        epoch: Integer. Number of the epoch, from 0.
        split: String. "train" or "test".
    """
    if seed is None:
        return np.arange(num_examples)
    index = np.arange(num_examples, dtype=np.uint64)
    # Sorting the indices by their hashes, as one sort of plain integers: the upper
    # bits hold the hash, the lower ones the index. Faster than `argsort`, and no two
    # values are equal, so that every sorting algorithm gives the same order.
    index_mask = np.uint64((1 << num_examples.bit_length()) - 1)
    hashes = hash64("order", seed, epoch, split, index)
    order = np.sort((hashes & ~index_mask) | index) & index_mask
    return order.astype(np.int64)
