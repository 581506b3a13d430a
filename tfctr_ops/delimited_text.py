"""`parse_delimited`: lines of fields between delimiters, as columns of numbers."""

import dataclasses

import tensorflow as tf

from tfctr_ops import library


@dataclasses.dataclass(frozen=True)
class ParsedText:
    """What `parse_delimited` found, one row per good line.

    Args:
        labels: float32 `(n,)`, zeros and ones; unspecified without a label.
        numbers: float32 `(n, fields)`. NaN where the field is empty.
        ids: int64 `(n, fields)`. -1 where the field is empty.
        bad_lines: int64 `(m, 5)`: of each bad line its number from 0, its first byte
            and the one behind its last, its first wrong field, or -1 if the number of
            fields is wrong, and that number.

    Example:

    >>> parse_delimited(b"2,3\\n", "ln", ",").bad_lines.numpy().tolist()
    [[0, 0, 3, 0, 2]]
    """

    labels: tf.Tensor
    numbers: tf.Tensor
    ids: tf.Tensor
    bad_lines: tf.Tensor


def parse_delimited(text: bytes | tf.Tensor, kinds: str, delimiter: str) -> ParsedText:
    """Parses whole lines, on all threads that TensorFlow has for one op.

    Args:
        text: Bytes, or a string tensor of shape `()`. The last line may lack its end.
        kinds: String, a letter for each field of a line. `"l"`: the label, 0 or 1.
            `"n"`: a decimal integer, or nothing. `"d"`: an id, a decimal integer of at
            most 18 digits, or nothing. `"h"`: an id of at most 16 hexadecimal digits,
            or nothing. `"-"`: anything.
        delimiter: String of one character.

    Returns:
        `ParsedText`.

    Raises:
        tf.errors.InvalidArgumentError: If `kinds` or `delimiter` are not like that.

    Example:

    >>> parsed = parse_delimited(b"1\\t5\\tff\\n0\\t\\t\\n", "lnh", "\\t")
    >>> parsed.numbers.numpy().tolist(), parsed.ids.numpy().tolist()
    ([[5.0], [nan]], [[255], [-1]])
    """
    with tf.device("CPU:0"):
        return ParsedText(
            *library.load().tfctr_parse_delimited(
                text, delimiter=delimiter, kinds=kinds
            )
        )
