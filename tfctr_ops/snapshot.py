"""What a snapshot or a store on disk holds, and whether it is whole."""

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


@dataclasses.dataclass(frozen=True)
class StoreFiles:
    """What a store with an `ssd_directory` has on disk.

    Rows in memory are not seen: a row whose key was removed or whose newest values are
    in memory counts like any other.

    Attributes:
        is_in_use: Boolean. Whether the owner lives; if not, the next store beside it
            removes these files.
        damage: Tuple of strings, one per damaged page; of a file with more than ten,
            one line tells how many more.
        dim: Integer. Width of the weights; 0 while no row is on disk, as are the next
            two.
        num_slot_floats: Integer. Optimizer values of a row.
        row_bytes: Integer. Bytes of a row.
        segments: Integer. Number of files.
        rows: Integer. On disk, older copies included.
        keys: Integer. Distinct keys of these rows.
        bytes: Integer. Of all segments.

    Example:

    >>> StoreFiles(True, (), 2, 0, 32, segments=1, rows=9, keys=8, bytes=8192).keys
    8
    """

    is_in_use: bool
    damage: tuple[str, ...]
    dim: int
    num_slot_floats: int
    row_bytes: int
    segments: int
    rows: int
    keys: int
    bytes: int


def inspect_store(directory: str) -> StoreFiles:
    """Reads all that a store has on disk, and changes nothing.

    A store that is in use changes meanwhile: what it removes is passed over, and what
    it has not written whole yet is no damage. Needs 16 to 48 bytes of memory per row
    of the largest of the 64 shards.

    Args:
        directory: String. That of the one store: `tfctr-<process>-<number>` under its
            `ssd_directory`.

    Raises:
        tf.errors.UnavailableError: If it cannot be read.

    Example:

    >>> inspect_store("nowhere")
    Traceback (most recent call last):
        ...
    tensorflow.python.framework.errors_impl.UnavailableError: ...
    """
    facts, damage = library.load().tfctr_inspect_store(directory)
    is_in_use, *numbers = facts.numpy().tolist()
    lines = tuple(tf.compat.as_str(line) for line in damage.numpy().tolist())
    return StoreFiles(bool(is_in_use), lines, *numbers)
