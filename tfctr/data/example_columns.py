"""Columns of pyarrow as the lists of values that a `tf.train.Feature` holds."""

import collections
import pathlib
from collections.abc import Iterator
from typing import Any


def check_example_columns(
    file: pathlib.Path, schema: Any, known: dict[str, tuple[str, pathlib.Path]]
) -> None:
    """Raises ValueError unless a `tf.train.Example` can hold all columns of a file.

    Args:
        file: `pathlib.Path`. For messages.
        schema: Of pyarrow.
        known: Dict. The kind of list that a column has become, and the first file with
            it, by name. What this file has first is added.
    """
    for name, number in collections.Counter(schema.names).items():
        if number > 1:
            raise ValueError(
                f"{file} must have columns of different names, to become TFRecord. "
                f"Received: {number} columns '{name}'. Write it anew, with a name for "
                "each."
            )
    for field in schema:
        kind = _kind_of(field.type)
        if kind is None:
            raise ValueError(
                f"{file} must have columns of integers, floats, booleans, texts or "
                "bytes, or lists of them, to become TFRecord. Received: column "
                f"'{field.name}' of type {field.type}. {_advice(field.type)}, or "
                "convert to Parquet."
            )
        if str(field.type) == "null":
            continue
        expected, first = known.setdefault(field.name, (kind, file))
        if kind != expected:
            raise ValueError(
                f"{file} must have column '{field.name}' as {first} has it, which "
                f"becomes `{expected}` of a `tf.train.Example`. Received: type "
                f"{field.type}, which becomes `{kind}`. Write one of them anew."
            )


def examples_of(table: Any) -> Iterator[bytes]:
    """Yields each row of a pyarrow table as a serialized `tf.train.Example`.

    What is null, or an empty list, is left out. Half precision becomes single; uint64
    from 2⁶³ on becomes the int64 of the same bits, as readers take it.
    """
    import tensorflow as tf

    train = tf.train
    columns = [
        (name, *_plain(column))
        for name, column in zip(table.schema.names, table.columns, strict=True)
    ]
    lists = {
        "int64_list": train.Int64List,
        "float_list": train.FloatList,
        "bytes_list": train.BytesList,
    }
    for row in range(table.num_rows):
        features = {}
        for name, kind, values in columns:
            value = values[row]
            some = value if isinstance(value, list) else [value]
            some = [item for item in some if item is not None]
            if some:
                features[name] = train.Feature(**{kind: lists[kind](value=some)})
        example = train.Example(features=train.Features(feature=features))
        yield example.SerializeToString()


def _plain(column: Any) -> tuple[str, list[Any]]:
    """Returns a field of `tf.train.Feature`, and for each row what it is to hold."""
    import pyarrow as pa

    kind = _kind_of(column.type) or "bytes_list"
    plain = {
        "int64_list": pa.int64(),
        "float_list": pa.float32(),
        "bytes_list": pa.large_binary(),
    }[kind]
    if _is_list(column.type):
        plain = pa.large_list(plain)
    # Not safe: integers may wrap, and doubles be rounded.
    return kind, column.cast(plain, safe=False).to_pylist()


def _kind_of(kind_of_column: Any) -> str | None:
    """Returns the field of `tf.train.Feature` for a type, or `None`."""
    from pyarrow import types

    value = kind_of_column
    if _is_list(value):
        value = value.value_type
    if types.is_dictionary(value):
        value = value.value_type
    if types.is_integer(value) or types.is_boolean(value) or types.is_null(value):
        return "int64_list"
    if types.is_floating(value):
        return "float_list"
    checks = (
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
    )
    return "bytes_list" if any(check(value) for check in checks) else None


def _is_list(kind_of_column: Any) -> bool:
    from pyarrow import types

    checks = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(check(kind_of_column) for check in checks)


def _advice(kind_of_column: Any) -> str:
    from pyarrow import types

    value = kind_of_column.value_type if _is_list(kind_of_column) else kind_of_column
    if types.is_nested(value):
        return "Write it anew flattened into columns of its own or without it"
    if types.is_decimal(value):
        return "Write it anew as float64 or string"
    return "Write it anew as int64 or string"
