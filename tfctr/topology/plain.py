"""Frozen dataclasses from the dicts and lists that JSON knows."""

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any


def from_plain(kind: Any, value: Any, name: str = "") -> Any:
    """A value of a type annotation: a dataclass, a tuple of one type, or a scalar.

    Raises:
        TypeError: If the value does not fit the annotation. The message names the
            field.
    """
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value, name)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, list | tuple):
        item = arguments[0]
        return tuple(
            from_plain(item, part, f"{name}[{index}]")
            for index, part in enumerate(value)
        )
    if origin is types.UnionType and value is not None:
        return from_plain(arguments[0], value, name)
    if origin is types.UnionType:
        return None
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{name}={value!r}")
    return value


def _dataclass(kind: type[Any], value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name or kind.__name__}={value!r}")
    path = f"{name}." if name else ""
    known = {field.name: field for field in fields(kind)}
    for key in value:
        if key not in known:
            raise TypeError(f"the field {path}{key}, which is unknown")
    for key, field in known.items():
        if key not in value and field.default is MISSING:
            raise TypeError(f"no field {path}{key}")
    hints = typing.get_type_hints(kind)
    arguments = {
        key: from_plain(hints[key], item, f"{path}{key}") for key, item in value.items()
    }
    return kind(**arguments)
