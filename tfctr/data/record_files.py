"""`read_records`: the records of TFRecord files, some thousands at a time."""

import pathlib
import re
from collections.abc import Iterator
from typing import Any

from tfctr.data.bad_lines import BadLines

# Of a record: length and its checksum before the bytes, and their checksum behind.
BEFORE, AROUND = 12, 16
_WHOLE = "a whole record"


def read_records(
    file: pathlib.Path, bad_lines: BadLines, batch_size: int
) -> Iterator[list[bytes]]:
    """Yields the records of a file in lists; what is damaged is a bad record.

    Args:
        file: `pathlib.Path`.
        bad_lines: `BadLines`.
        batch_size: Integer. Records of a list.

    Raises:
        ValueError: If the file is compressed, or at damage if `bad_lines` raises.
    """
    import tensorflow as tf

    _check_plain(file)
    dataset = tf.data.TFRecordDataset(str(file))
    count = num_bytes = 0
    try:
        for batch in dataset.batch(batch_size):
            records = batch.numpy().tolist()
            yield records
            count += len(records)
            num_bytes += bytes_of(records)
        # TensorFlow takes less than the length of a record for the end.
        rest_bytes = file.stat().st_size - num_bytes
        if rest_bytes:
            reason = f"{rest_bytes} bytes behind the last whole record"
            bad_lines.add(file, count + 1, reason, _WHOLE, "record")
        return
    except tf.errors.DataLossError:
        pass
    # Once more from the last whole block on, one by one up to the damage.
    rest: list[bytes] = []
    try:
        for record in dataset.skip(count):
            rest.append(record.numpy())
    except tf.errors.DataLossError as error:
        if rest:
            yield rest
        number, reason = count + len(rest) + 1, _reason(error.message)
        bad_lines.add(file, number, reason, _WHOLE, "record")


def bytes_of(records: list[bytes]) -> int:
    """Returns how many bytes of a file the records are."""
    return sum(map(len, records)) + AROUND * len(records)


def kinds_of(record: bytes) -> dict[str, str | None] | None:
    """Returns the kind of list of each feature of an example; of no example, `None`."""
    features = features_of(record)
    if features is None:
        return None
    return {name: features[name].WhichOneof("kind") for name in features}


def features_of(record: bytes) -> Any:
    """Returns `tf.train.Feature`s by name of an example; of no example, `None`."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        return tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return None


def shown(record: bytes) -> str:
    """Returns a record as a message quotes it."""
    return repr(record)[2:-1]


def _reason(message: str) -> str:
    """Returns a message of TensorFlow without the names of its ops."""
    return re.sub(r"^\{\{.*?\}\}\s*|\s*\[Op:.*", "", message, flags=re.DOTALL)


def _check_plain(file: pathlib.Path) -> None:
    with file.open("rb") as opened:
        if opened.read(2) == b"\x1f\x8b":
            raise ValueError(
                f"{file} must be a TFRecord file that is not compressed. Received: a "
                f"gzip file. Unpack it: gunzip '{file}'."
            )
