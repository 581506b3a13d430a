"""`Scored`: tested examples, and how well the model and the baselines ranked them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.metrics import auc, log_loss

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Scored:
    """Examples that a model was tested on.

    Args:
        labels: Array `(n,)`. In the order of `probabilities`.
        probabilities: Array `(n,)`. What the model says.
        log_labels: Array `(n,)`. The same in the order of the log, which that of
            several ranks is not.
        baselines: By name, an array `(n,)` of scores in the order of the log.
    """

    labels: Array
    probabilities: Array
    log_labels: Array
    baselines: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.labels)

    def metrics(self) -> dict[str, float]:
        """Returns `auc`, `log_loss` and each baseline's AUC as `NAME_auc`.

        Without an example they are NaN, and AUCs without clicks or non-clicks too.
        """
        loss = log_loss(self.labels, self.probabilities) if len(self) else math.nan
        return {
            "auc": _auc(self.labels, self.probabilities),
            "log_loss": loss,
            **{
                f"{name}_auc": _auc(self.log_labels, scores)
                for name, scores in self.baselines.items()
            },
        }


def join(parts: Sequence[Scored]) -> Scored:
    """Returns the examples of all parts, of which there is at least one."""
    return Scored(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
        np.concatenate([part.log_labels for part in parts]),
        {
            name: np.concatenate([part.baselines[name] for part in parts])
            for name in parts[0].baselines
        },
    )


def mean_of(
    windows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, float]:
    """Returns means over windows, each weighing its tested examples.

    Windows whose metric is NaN are left out of its mean.
    """
    weights = np.array([window["tested_examples"] for window in windows], np.float64)
    means = {}
    for name in names:
        values = np.array([window[name] for window in windows], np.float64)
        known = ~np.isnan(values)
        total = weights[known].sum()
        weighed = float((values * weights)[known].sum())
        means[name] = weighed / float(total) if total else math.nan
    return means


def _auc(labels: Array, scores: Array) -> float:
    if len(labels) == 0 or labels.min() == labels.max():
        return math.nan
    return auc(labels, scores)
