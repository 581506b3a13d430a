"""What a snapshot on disk holds, and whether it is whole."""

import dataclasses

import tensorflow as tf

from tfctr_ops import library


@dataclasses.dataclass(frozen=True)
class SnapshotFile:
    """A file of a snapshot: a segment, or what admission has counted.

    Attributes:
        name: String.
        rows: Integer. Rows in the file.
        live_rows: Integer. Rows that belong to the snapshot; the others are older or
            newer copies, of other snapshots.
        bytes: Integer. Of the file, as far as the snapshot needs it.

    Example:

    >>> SnapshotFile("segment-000000000001", rows=26, live_rows=20, bytes=8192).rows
    26
    """

    name: str
    rows: int
    live_rows: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class SnapshotInfo:
    """What the manifest of a snapshot says.

    Attributes:
        metadata: String, as given to `EmbeddingStore.save`.
        step: Integer. Updates the table had seen.
        dim: Integer. Width of the weights.
        num_slot_floats: Integer. Optimizer values of a row.
        rows: Integer.
        files: Tuple of `SnapshotFile`.

    Example:

    >>> SnapshotInfo("", step=0, dim=2, num_slot_floats=0, rows=0, files=()).bytes
    0
    """

    metadata: str
    step: int
    dim: int
    num_slot_floats: int
    rows: int
    files: tuple[SnapshotFile, ...]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)


def read_info(directory: str) -> SnapshotInfo:
    """Returns what the snapshot in `directory` says it holds.

    Args:
        directory: String, as given to `EmbeddingStore.save`.

    Raises:
        tf.errors.UnavailableError: If there is none.
        tf.errors.DataLossError: If its manifest is damaged.

    Example:

    >>> read_info("nowhere")
    Traceback (most recent call last):
        ...
    tensorflow.python.framework.errors_impl.UnavailableError: ...
    """
    metadata, facts, names, segments = library.load().tfctr_snapshot_info(directory)
    step, dim, num_slot_floats, rows = facts.numpy().tolist()
    files = tuple(
        SnapshotFile(tf.compat.as_str(name), *numbers)
        for name, numbers in zip(
            names.numpy().tolist(), segments.numpy().tolist(), strict=True
        )
    )
    text = tf.compat.as_str(metadata.numpy())
    return SnapshotInfo(text, step, dim, num_slot_floats, rows, files)


def find_damage(directory: str) -> list[str]:
    """Reads all of a snapshot, and returns what is wrong with it: one line per file.

    Args:
        directory: String, as given to `EmbeddingStore.save`.

    Example:

    >>> len(find_damage("nowhere"))
    1
    """
    damage = library.load().tfctr_snapshot_damage(directory)
    return [tf.compat.as_str(line) for line in damage.numpy().tolist()]
