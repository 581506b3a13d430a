"""`RawTable`: columns as a file has them, and the features that become of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.data.columns import Array, Bag, Examples
from tfctr.declaration import FeatureDeclaration

MISSING_ID = -1


@dataclasses.dataclass(frozen=True)
class RawTable:
    """Some rows of a file.

    Args:
        columns: By name, an array `(n,)` or a `Bag`. Numbers are float with NaN, ids
            int64 with -1, and strings objects of bytes with `b""` where there is none.
        labels: float32 `(n,)`.
        matrices: Names of columns, and what holds them side by side, `(n, names)`.
    """

    columns: Mapping[str, "Array | Bag"]
    labels: npt.NDArray[np.float32]
    matrices: Sequence[tuple[Sequence[str], Array]] = ()

    def column(self, name: str) -> Any:
        for names, matrix in self.matrices:
            if name in names:
                return matrix[:, names.index(name)]
        return self.columns[name]

    def side_by_side(self, wanted: Sequence[str]) -> Array:
        for names, matrix in self.matrices:
            if wanted[0] in names:
                start = names.index(wanted[0])
                if tuple(names[start : start + len(wanted)]) == tuple(wanted):
                    return matrix[:, start : start + len(wanted)]
        return np.stack([self.column(name) for name in wanted], axis=1)

    def examples(self, declared: Sequence[FeatureDeclaration]) -> Examples:
        """Returns the features that are made of the columns."""
        inputs = {feature.name: _made(feature, self) for feature in declared}
        return Examples(inputs, self.labels)


def _made(declared: FeatureDeclaration, table: RawTable) -> "Array | Bag":
    values: Any
    if declared.columns:
        values = table.side_by_side(declared.columns)
    else:
        values = table.column(declared.sources[0])
    if isinstance(values, Bag):
        return values
    if declared.transform == "bucketize":
        numbers = values.astype(np.float64)
        buckets = np.searchsorted(declared.boundaries, numbers, side="right")
        return np.where(np.isnan(numbers), MISSING_ID, buckets).astype(np.int64)
    if declared.kind == "id" and values.dtype.kind == "f":
        return np.where(np.isnan(values), MISSING_ID, values).astype(np.int64)
    if declared.kind != "dense":
        return np.ascontiguousarray(values)
    numbers = np.array(values, np.float32)  # A copy of our own.
    is_missing = np.isnan(numbers)
    if declared.transform == "log":
        np.log1p(np.maximum(numbers, 0, out=numbers), out=numbers)
    numbers[is_missing] = declared.missing
    return numbers
