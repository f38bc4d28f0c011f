# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON Schema, as far as the inputs of tools need it. A schema that says more than is understood here is refused when it
is registered, so that no input passes for having been checked when it was not.

Regular expressions are not among it: matching one that somebody else wrote can take any time.

To add a keyword: its shape in `_SHAPES`, its check in `_Checking`, and rows in tests/engine/test_engine_schemas.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sandboxd.errors import RequestError

MAX_STEPS = 50_000  # values and schemas that one check compares
MAX_DEPTH = 64  # schemas inside one another

Schema = Mapping[str, Any]


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _integer(value: Any) -> bool:
    return _number(value) and (isinstance(value, int) or value.is_integer())


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, (list, tuple)),
    "string": lambda value: isinstance(value, str),
    "integer": _integer,
    "number": _number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def _texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _types(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else _texts(value) and bool(value) and all(each in _TYPES for each in value)


# keyword -> (what it must be, whether a value is that)
_SHAPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "type": (f"one of {', '.join(_TYPES)}, or a list of them", _types),
    "required": ("a list of names", _texts),
    "enum": ("a list of values", lambda value: isinstance(value, (list, tuple)) and bool(value)),
    "const": ("a value", lambda value: True),
    "minimum": ("a number", _number),
    "maximum": ("a number", _number),
    "exclusiveMinimum": ("a number", _number),
    "exclusiveMaximum": ("a number", _number),
    "minLength": ("a count", _count),
    "maxLength": ("a count", _count),
    "minItems": ("a count", _count),
    "maxItems": ("a count", _count),
    "uniqueItems": ("true or false", lambda value: isinstance(value, bool)),
    "properties": ("a table of schemas", lambda value: isinstance(value, Mapping)),
    "$defs": ("a table of schemas", lambda value: isinstance(value, Mapping)),
    "definitions": ("a table of schemas", lambda value: isinstance(value, Mapping)),
    "additionalProperties": ("a schema, true or false", lambda value: isinstance(value, (bool, Mapping))),
    "items": ("a schema, true or false", lambda value: isinstance(value, (bool, Mapping))),
    "anyOf": ("a list of schemas", lambda value: isinstance(value, (list, tuple)) and bool(value)),
    "oneOf": ("a list of schemas", lambda value: isinstance(value, (list, tuple)) and bool(value)),
    "allOf": ("a list of schemas", lambda value: isinstance(value, (list, tuple)) and bool(value)),
    "$ref": ("`#/$defs/NAME`", lambda value: isinstance(value, str)),
}
# Words about a value, which change nothing for it.
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "format", "readOnly", "writeOnly", "$schema", "$id", "$comment")
)


def check_schema(schema: Any, field: str) -> None:
    """Raise RequestError unless `schema` describes an object in keywords that are understood. `field` names it."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise RequestError(f"`{field}` is no schema of an object", field=field, fix='write {"type": "object", "properties": …}')
    _check(schema, schema, field, 0)


def _check(schema: Any, root: Schema, field: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise RequestError(f"`{field}` is no schema", field=field, fix="write an object, true or false")
    if depth > MAX_DEPTH:
        raise RequestError(f"`{field}` is nested more than {MAX_DEPTH} deep", field=field, fix="flatten it")
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword not in _SHAPES:
            known = ", ".join(_SHAPES)
            raise RequestError(f"`{field}` uses `{keyword}`, which is not understood", field=field, fix=f"use only {known}")
        wanted, fits = _SHAPES[keyword]
        if not fits(value):
            raise RequestError(f"`{keyword}` of `{field}` is not {wanted}", field=field, fix="correct the schema")
    if "$ref" in schema:
        _referred(schema["$ref"], root, field)
    for where, inner in _inside(schema):
        _check(inner, root, f"{field}.{where}", depth + 1)


def _inside(schema: Schema) -> Iterator[tuple[str, Any]]:
    for keyword in ("properties", "$defs", "definitions"):
        for name, inner in schema.get(keyword, {}).items():
            yield f"{keyword}.{name}", inner
    for keyword in ("additionalProperties", "items"):
        if keyword in schema:
            yield keyword, schema[keyword]
    for keyword in ("anyOf", "oneOf", "allOf"):
        for number, inner in enumerate(schema.get(keyword, ())):
            yield f"{keyword}[{number}]", inner


def _referred(reference: str, root: Schema, field: str) -> Any:
    for place in ("$defs", "definitions"):
        name = reference.removeprefix(f"#/{place}/")
        if name != reference and name in root.get(place, {}):
            return root[place][name]
    raise RequestError(f"`{field}` refers to `{reference}`, which is not there", field=field, fix="refer to `#/$defs/NAME`")


def validate(value: Any, schema: Schema, field: str) -> None:
    """Raise RequestError naming the part of `value` that does not fit, and what would. The schema has passed
    `check_schema`."""
    wrong = _Checking(schema).wrong(value, schema, field, 0)
    if wrong is not None:
        raise wrong


class _Checking:
    def __init__(self, root: Schema) -> None:
        self.root = root
        self.steps = 0

    def wrong(self, value: Any, schema: Any, field: str, depth: int) -> RequestError | None:
        self.steps += 1
        if self.steps > MAX_STEPS or depth > MAX_DEPTH:
            raise RequestError(f"`{field}` is too large to be checked", field=field, fix="send less")
        if isinstance(schema, bool):
            return None if schema else RequestError(f"`{field}` is not expected", field=field, fix="leave it out")
        if "$ref" in schema:
            found = self.wrong(value, _referred(schema["$ref"], self.root, field), field, depth + 1)
            if found is not None:
                return found
        return (
            self._plain(value, schema, field)
            or self._parts(value, schema, field, depth)
            or self._any(value, schema, field, depth)
        )

    def _plain(self, value: Any, schema: Schema, field: str) -> RequestError | None:
        def no(what: str) -> RequestError:
            return RequestError(f"`{field}` must be {what}", field=field, fix="send an input that fits the tool's schema")

        kinds = schema.get("type")
        if kinds is not None:
            names = (kinds,) if isinstance(kinds, str) else kinds
            if not any(_TYPES[name](value) for name in names):
                return no(" or ".join(names))
        if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
            return no(f"one of {_shown(schema['enum'])}")
        if "const" in schema and not _same(value, schema["const"]):
            return no(_shown(schema["const"]))
        if _number(value):
            if "minimum" in schema and value < schema["minimum"]:
                return no(f"at least {schema['minimum']}")
            if "maximum" in schema and value > schema["maximum"]:
                return no(f"at most {schema['maximum']}")
            if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
                return no(f"more than {schema['exclusiveMinimum']}")
            if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
                return no(f"less than {schema['exclusiveMaximum']}")
        sized = "Length" if isinstance(value, str) else "Items" if isinstance(value, (list, tuple)) else ""
        if sized:
            if len(value) < schema.get(f"min{sized}", 0):
                return no(f"at least {schema[f'min{sized}']} long")
            if f"max{sized}" in schema and len(value) > schema[f"max{sized}"]:
                return no(f"at most {schema[f'max{sized}']} long")
        return None

    def _parts(self, value: Any, schema: Schema, field: str, depth: int) -> RequestError | None:
        if isinstance(value, Mapping):
            known = schema.get("properties", {})
            for name in schema.get("required", ()):
                if name not in value:
                    return RequestError(f"`{field}.{name}` is missing", field=f"{field}.{name}", fix="set it")
            others = schema.get("additionalProperties", True)
            for name, each in value.items():
                found = self.wrong(each, known.get(name, others), f"{field}.{name}", depth + 1)
                if found is not None:
                    return found
        elif isinstance(value, (list, tuple)):
            each_is = schema.get("items", True)
            for number, each in enumerate(value):
                found = self.wrong(each, each_is, f"{field}[{number}]", depth + 1)
                if found is not None:
                    return found
            if schema.get("uniqueItems") and len({json.dumps(each, sort_keys=True) for each in value}) < len(value):
                return RequestError(f"`{field}` holds a value twice", field=field, fix="send each once")
        return None

    def _any(self, value: Any, schema: Schema, field: str, depth: int) -> RequestError | None:
        for inner in schema.get("allOf", ()):
            found = self.wrong(value, inner, field, depth + 1)
            if found is not None:
                return found
        for keyword, most in (("anyOf", None), ("oneOf", 1)):
            if keyword not in schema:
                continue
            answers = [self.wrong(value, inner, field, depth + 1) for inner in schema[keyword]]
            fitting = answers.count(None)
            if fitting == 0:
                return answers[0]
            if most is not None and fitting > most:
                return RequestError(f"`{field}` fits more than one of `{keyword}`", field=field, fix="send what fits one only")
        return None


def _same(value: Any, other: Any) -> bool:
    """Equality as JSON has it: true is not 1, 1.0 is 1."""
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:199]}…"
