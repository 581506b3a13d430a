"""`group_auc`: how well the scores of each user rank what that user was shown."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.metrics.examples import check_examples

_KINDS = {"b": "integers", "i": "integers", "u": "unsigned integers"}
_KINDS |= {"U": "strings", "S": "bytes"}
_TYPES = {int: "integers", str: "strings", bytes: "bytes", np.uint64: _KINDS["u"]}


def group_auc(
    labels: npt.ArrayLike, scores: npt.ArrayLike, groups: npt.ArrayLike
) -> float:
    """Returns the AUC of each group, averaged with the number of its examples.

    Groups whose labels are all equal have no AUC, and are left out.

    Args:
        labels: Array of zeros and ones, of shape `(n,)`.
        scores: Array of numbers, of shape `(n,)`: probabilities or logits.
        groups: Array of integers or strings, of shape `(n,)`: the user, session or
            query of each example.

    Raises:
        ValueError: If a shape is wrong, a label is neither 0 nor 1, a score is NaN,
            groups are named by values of several types, or no group has labels of both
            kinds.

    References:
        - Zhu et al., 2017, "Optimized Cost per Click in Taobao Display Advertising",
          section 6.1 (GAUC, weighted by impressions)

    Example:

    >>> group_auc([1, 0, 0, 1], [0.9, 0.1, 0.8, 0.2], ["a", "a", "b", "b"])
    0.5
    """
    metric = GroupAUC()
    metric.update(labels, scores, groups)
    return metric.result()


class GroupAUC:
    """`group_auc` of examples that come in parts; parts of other ranks are merged.

    It keeps the examples, 9 bytes and the group of each, so that it stays exact.

    Example:

    >>> metric, other = GroupAUC(), GroupAUC()
    >>> metric.update([1, 0], [0.9, 0.1], [7, 7])
    >>> other.update([0], [0.95], [7])
    >>> metric.merge(other)
    >>> metric.result()
    0.5
    """

    def __init__(self) -> None:
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._kind = ""  # Of the groups.

    def update(
        self, labels: npt.ArrayLike, scores: npt.ArrayLike, groups: npt.ArrayLike
    ) -> None:
        """Adds examples; see `group_auc`."""
        is_positive, score_array = check_examples(labels, scores, "scores")
        # Copies: callers may fill their buffers anew for the next part.
        group_array, score_array = np.array(groups), score_array.copy()
        if group_array.shape != is_positive.shape:
            raise ValueError(
                "`groups` must name a group for each of `labels`. Received: "
                f"groups.shape={group_array.shape}, labels.shape={is_positive.shape}."
            )
        kind = _kind(group_array)
        if len(group_array) == 0:
            return
        if kind != (self._kind or kind):
            raise ValueError(
                f"`groups` must be {self._kind} in all parts, as in the first. "
                f"Received: {kind}."
            )
        self._kind = kind
        self._parts.append((is_positive, score_array, group_array))

    def merge(self, other: "GroupAUC") -> None:
        """Adds the examples of `other`."""
        for part in other._parts:
            self.update(*part)

    def result(self) -> float:
        """Returns the metric of all examples so far; see `group_auc`."""
        columns = zip(*self._parts, strict=True)
        is_positive, scores, groups = (
            [np.concatenate(column) for column in columns]
            if self._parts
            else [np.zeros(0)] * 3
        )
        _, group = np.unique(groups, return_inverse=True)
        order = np.lexsort((scores, group))
        group, scores, clicks = group[order], scores[order], is_positive[order] > 0
        sizes = np.bincount(group)
        positives = np.bincount(group, clicks)
        negatives = sizes - positives
        # Ranks within a group, from 1; equal scores share the mean of theirs.
        begins = np.cumsum(sizes) - sizes
        is_new = np.ones(len(group), bool)
        is_new[1:] = (group[1:] != group[:-1]) | (scores[1:] != scores[:-1])
        first = np.flatnonzero(is_new)
        ends = np.append(first[1:], len(group))
        mean_rank = (first + 1 + ends) / 2
        ranks = np.repeat(mean_rank, ends - first) - begins[group]
        rank_sums = np.bincount(group, ranks * clicks)
        has_both = (positives > 0) & (negatives > 0)
        if not has_both.any():
            raise ValueError(
                "Group AUC compares the clicks of a group with its non-clicks, so some "
                f"group must have both. Received: {len(sizes)} groups, none of which "
                "has. Evaluate on more examples, or on larger groups."
            )
        wins = rank_sums - positives * (positives + 1) / 2
        pairs = positives * negatives
        areas = wins[has_both] / pairs[has_both]
        return float(np.average(areas, weights=sizes[has_both]))


def _kind(groups: npt.NDArray[Any]) -> str:
    """Returns what groups are named by: NumPy would mix kinds up without a word."""
    kinds = {_KINDS.get(groups.dtype.kind, str(groups.dtype))}
    if groups.dtype.kind == "O":
        kinds = {_TYPES.get(type(name), str(type(name))) for name in groups.tolist()}
    received = " and ".join(sorted(kinds))
    if received not in _TYPES.values() and len(groups) > 0:
        raise ValueError(
            f"`groups` must be integers, or strings, all of them. Received: {received}."
        )
    return received
