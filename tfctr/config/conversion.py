"""Frozen dataclasses from the dicts and lists of TOML, and from overrides."""

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from tfctr.config.checks import require

T = TypeVar("T")


def parse_override(override: str) -> tuple[str, str, Any]:
    """Returns section, key and value of `section.key=value`."""
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        raise ValueError(
            "An override must look like section.key=value, for example "
            f"run.epochs=3. Received: {override!r}."
        )
    try:
        return section, key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return section, key, text  # A string without quotes, as shells leave it.


def build(kind: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Returns a dataclass of nested dicts; errors name entries behind `prefix`."""
    hints = typing.get_type_hints(kind)
    arguments = {}
    for name, value in values.items():
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            guess = f" Did you mean '{prefix}{close[0]}'?" if close else ""
            raise ValueError(
                f"The configuration has no '{prefix}{name}'. Known here: "
                f"{', '.join(prefix + known for known in hints)}.{guess}"
            )
        arguments[name] = _convert(value, hints[name], f"{prefix}{name}")
    return kind(**arguments)


def _convert(value: Any, hint: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ValueError(
                f"'{name}' must be a section of the configuration. "
                f"Received: {name}={value!r}. Write [{name}] on a line of its own."
            )
        return build(typing.cast(type, hint), value, f"{name}.")
    if isinstance(hint, types.GenericAlias):
        kind = typing.get_args(hint)[0]
        expected = "a list of integers" if kind is int else "a list"
        is_good = isinstance(value, list | tuple)
        if is_good and kind is int:
            is_good = all(type(item) is int for item in value)
        require(is_good, name, expected, value)
        return tuple(
            _convert(item, kind, f"{name}[{index}]") for index, item in enumerate(value)
        )
    if hint is bool:
        require(type(value) is bool, name, "true or false", value)
        return value
    if hint is float:
        require(type(value) in (int, float), name, "a number", value)
        return float(value)
    if hint is int:
        require(type(value) is int, name, "an integer", value)
        require(abs(value) < 2**63, name, "an integer of at most 64 bits", value)
        return value
    require(isinstance(value, str), name, "a string, in quotes in TOML", value)
    return value
