"""`parse_delimited`: lines of fields between delimiters, as columns of numbers."""

import dataclasses
from collections.abc import Sequence

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


@dataclasses.dataclass(frozen=True)
class PlacedText:
    """What `parse_delimited_to` read.

    Args:
        labels: float32 `(n,)`, as those of `ParsedText`.
        numbers: float32 `(n, fields)`.
        ids: int64 `(n, fields)`.
        is_as_told: Boolean `(k,)`. Whether each text has as many lines as were told of,
            and those with a row are good; if not, its rows are unspecified.

    Example:

    >>> parse_delimited_to([b"2,3\\n"], [1], [0], "ln", ",").is_as_told.numpy()
    array([False])
    """

    labels: tf.Tensor
    numbers: tf.Tensor
    ids: tf.Tensor
    is_as_told: tf.Tensor


def parse_delimited_to(
    texts: Sequence[bytes] | tf.Tensor,
    num_lines: Sequence[int] | tf.Tensor,
    places: Sequence[int] | tf.Tensor,
    kinds: str,
    delimiter: str,
) -> PlacedText:
    """Parses texts into rows of any order, as for an epoch that is shuffled.

    Args:
        texts: k of bytes, or a string tensor of shape `(k,)`. Whole lines each.
        num_lines: Integers. How many each text has, as `parse_delimited` tells.
        places: Integers, one per line of all texts: its row, from 0 to n - 1, each
            given once; or -1 for a line that is left out.
        kinds: String, as for `parse_delimited`.
        delimiter: String, as for `parse_delimited`.

    Returns:
        `PlacedText`.

    Raises:
        tf.errors.InvalidArgumentError: If an argument is not like that.

    Example:

    >>> texts = [b"1\\t5\\n0\\t6\\n", b"1\\t7\\n"]
    >>> parsed = parse_delimited_to(texts, [2, 1], [1, -1, 0], "ld", "\\t")
    >>> parsed.ids.numpy().tolist()
    [[7], [5]]
    """
    with tf.device("CPU:0"):
        return PlacedText(
            *library.load().tfctr_parse_delimited_to(
                tf.convert_to_tensor(texts, tf.string),
                tf.convert_to_tensor(num_lines, tf.int64),
                tf.convert_to_tensor(places, tf.int64),
                delimiter=delimiter,
                kinds=kinds,
            )
        )
