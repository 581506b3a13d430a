"""Columns of examples in memory: arrays, and bags of any number of ids."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Bag:
    """Ids of which an example has any number.

    Args:
        values: Array `(m,)`. The ids of all examples, one after another.
        row_splits: int64 `(n + 1,)`. Example i has
            `values[row_splits[i]:row_splits[i + 1]]`.
    """

    values: Array
    row_splits: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def take(self, rows: npt.NDArray[np.int64]) -> "Bag":
        starts = self.row_splits[rows]
        lengths = self.row_splits[rows + 1] - starts
        row_splits = _splits(lengths)
        # Position in the new values, less where its example begins, from its old place.
        shift = np.repeat(starts - row_splits[:-1], lengths)
        return Bag(self.values[np.arange(len(shift)) + shift], row_splits)

    def __getitem__(self, rows: slice) -> "Bag":
        start, stop, _ = rows.indices(len(self))
        row_splits = self.row_splits[start : stop + 1]
        values = self.values[row_splits[0] : row_splits[-1]]
        return Bag(values, row_splits - row_splits[0])


@dataclasses.dataclass(frozen=True)
class Examples:
    """Some examples: the values of each feature, and the labels.

    Args:
        inputs: By feature, an array `(n,)` or `(n, width)`, or a `Bag`.
        labels: float32 `(n,)`.
    """

    inputs: Mapping[str, "Array | Bag"]
    labels: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: npt.NDArray[np.int64]) -> "Examples":
        """Returns the examples at these indices."""
        inputs = {
            name: column.take(rows)
            if isinstance(column, Bag)
            else column.take(rows, axis=0)
            for name, column in self.inputs.items()
        }
        return Examples(inputs, self.labels.take(rows))

    def __getitem__(self, rows: slice) -> "Examples":
        inputs = {name: column[rows] for name, column in self.inputs.items()}
        return Examples(inputs, self.labels[rows])

    def pick(self, rows: "npt.NDArray[np.int64] | slice") -> "Examples":
        """Returns the examples in a slice, or those at these indices."""
        return self[rows] if isinstance(rows, slice) else self.take(rows)

    def arrays(self) -> Iterator[Array]:
        """Yields the arrays it consists of; of a bag its values, then its splits."""
        for column in self.inputs.values():
            if isinstance(column, Bag):
                yield column.values
                yield column.row_splits
            else:
                yield column
        yield self.labels


def bag_of_lengths(values: Array, lengths: npt.NDArray[Any]) -> Bag:
    """Returns the bag whose example i has `lengths[i]` of the values."""
    return Bag(values, _splits(lengths))


def concatenate(parts: Sequence[Examples]) -> Examples:
    """Returns the examples of all parts, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    inputs = {
        name: _concatenate([part.inputs[name] for part in parts])
        for name in parts[0].inputs
    }
    return Examples(inputs, np.concatenate([part.labels for part in parts]))


def _concatenate(columns: Sequence[Any]) -> "Array | Bag":
    if not isinstance(columns[0], Bag):
        joined: Array = np.concatenate(columns)
        return joined
    values = np.concatenate([column.values for column in columns])
    lengths = np.concatenate([np.diff(column.row_splits) for column in columns])
    return bag_of_lengths(values, lengths)


def _splits(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    row_splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=row_splits[1:])
    return row_splits
