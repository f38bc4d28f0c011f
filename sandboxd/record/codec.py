# SPDX-License-Identifier: GPL-3.0-or-later
"""Frozen model values as JSON and back, by their type annotations.

Enums become their values, tuples arrays, a NamedTuple an array, a dataclass an object of its fields.
Reading is lenient in one way only: a field that is missing takes its default, and one that is unknown is skipped, so that
a record written by another version of the same schema can be read.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Hashable
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


def dumps(value: object, clean: Callable[[str], str] | None = None) -> str:
    """One line of JSON, keys in the order of the fields, non-ASCII text kept. `clean` is put over every string."""
    return _encode(value if clean is None else _plain(value, clean))


def loads(kind: type[T], text: str) -> T:
    """The value of type `kind`. Raises ValueError when the text does not hold one."""
    try:
        value: T = _reader(cast("Hashable", kind))(json.loads(text))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error
    return value


def _plain(value: object, clean: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item, clean) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, clean) for key, item in value.items()}
    return _plain(_opened(value), clean)


def _opened(value: object) -> object:
    """What JSON does not know itself, as what is in it."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {name: getattr(value, name) for name in _fields(cast("Hashable", type(value)))}
    raise TypeError(f"a {type(value).__name__} has no JSON form here")


_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=_opened).encode


@cache
def _fields(kind: Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]  # a dataclass, as seen above


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (_reader(argument) for argument in arguments if argument is not type(None))
        return lambda data: None if data is None else inner(data)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _reader(arguments[0])
        return lambda data: tuple(item(each) for each in data)
    if origin is tuple:
        items = tuple(_reader(argument) for argument in arguments)
        return lambda data: tuple(read(each) for read, each in zip(items, data, strict=True))
    if kind in (str, int, bool, float):
        return lambda data: _checked(kind, data)
    if issubclass(kind, Enum):
        return lambda data: kind(data)
    hints = typing.get_type_hints(kind)
    if issubclass(kind, tuple):
        parts = tuple(_reader(hint) for hint in hints.values())
        return lambda data: kind(*(read(each) for read, each in zip(parts, data, strict=True)))
    fields = {name: _reader(hints[name]) for name in _fields(kind)}
    return lambda data: kind(**{name: read(data[name]) for name, read in fields.items() if name in data})


def _checked(kind: type, data: Any) -> Any:
    if kind is float and isinstance(data, int):
        return float(data)
    if not isinstance(data, kind):
        raise TypeError(f"{data!r} is no {kind.__name__}")
    return data
