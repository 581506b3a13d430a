"""Columns of pyarrow as NumPy arrays and bags."""

from typing import Any

import numpy as np

from tfctr.data.columns import Array, Bag, bag_of_lengths
from tfctr.data.raw_table import MISSING_ID

_EXPECTED = {
    "id": "integers",
    "ids": "lists of integers",
    "string": "strings",
    "strings": "lists of strings",
    "dense": "numbers or booleans",
}


def import_pyarrow() -> Any:
    """Returns pyarrow.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            "Parquet files and `tfctr data` need pyarrow, which is not installed. "
            "Install it: pip install pyarrow."
        ) from error
    return pyarrow


def check_type(kind_of_column: Any, kind: str, where: str) -> None:
    """Raises ValueError unless a column can be a feature of this kind."""
    import pyarrow as pa

    is_list = pa.types.is_list(kind_of_column) or pa.types.is_large_list(kind_of_column)
    value = kind_of_column.value_type if is_list else kind_of_column
    if pa.types.is_dictionary(value):
        value = value.value_type
    if kind in ("id", "ids"):
        is_good = pa.types.is_integer(value)
    elif kind in ("dense", "label"):
        is_good = (
            pa.types.is_integer(value)
            or pa.types.is_floating(value)
            or pa.types.is_boolean(value)
        )
    else:
        is_good = any(
            check(value)
            for check in (
                pa.types.is_string,
                pa.types.is_large_string,
                pa.types.is_binary,
                pa.types.is_large_binary,
            )
        )
    is_good = is_good and is_list == (kind in ("ids", "strings"))
    if kind == "label" and not is_good:
        raise ValueError(
            f"{where} must hold the labels, 1 for a click and 0 for none, or booleans. "
            f"Received: {kind_of_column}. Name another column by `label`, in a "
            "configuration data.label, or write this one anew."
        )
    if not is_good:
        raise ValueError(
            f"{where} must hold {_EXPECTED[kind]} for a feature of kind '{kind}'. "
            f"Received: {kind_of_column}. Declare another `kind`, or write the column "
            "anew."
        )


def to_column(column: Any, is_number: bool = False) -> "Array | Bag":
    """Returns a chunked array as `RawTable` holds columns.

    Args:
        column: Of a pyarrow table.
        is_number: Boolean. Whether integers are numbers, and no ids: as float64, where
            an empty field is NaN and not -1, which may be a number of its own.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # What pyarrow gives for no rows.
        column = pa.array([], column.type)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        values = to_column(pc.list_flatten(column))
        if isinstance(values, Bag):
            raise ValueError("Lists of lists are no feature.")
        return bag_of_lengths(values, lengths.to_numpy(zero_copy_only=False))
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if is_number and pa.types.is_integer(column.type):
        column = column.cast(pa.float64(), safe=False)
    if pa.types.is_integer(column.type):
        # uint64 beyond int64 is taken for the int64 of the same bits.
        ids: Array = pc.fill_null(column, _missing(column.type)).to_numpy(
            zero_copy_only=False
        )
        if column.null_count == 0 or not pa.types.is_unsigned_integer(column.type):
            return ids.astype(np.int64, copy=False)
        is_missing = column.is_null().to_numpy(zero_copy_only=False)
        return np.where(is_missing, MISSING_ID, ids.astype(np.int64))
    if pa.types.is_floating(column.type):
        numbers: Array = column.to_numpy(zero_copy_only=False)
        return numbers
    texts: Array = (
        pc.fill_null(column.cast(pa.large_binary()), b"")
        .to_numpy(zero_copy_only=False)
        .astype(object)
    )
    return texts


def _missing(kind: Any) -> int:
    import pyarrow as pa

    return 0 if pa.types.is_unsigned_integer(kind) else MISSING_ID
