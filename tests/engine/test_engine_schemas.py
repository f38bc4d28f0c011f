# SPDX-License-Identifier: GPL-3.0-or-later
"""Schemas of tool inputs: what fits, what does not, and which schemas are not understood."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import RequestError
from sandboxd.schemas import check_schema, validate

TREE = {"$defs": {"node": {"type": "object", "properties": {"down": {"$ref": "#/$defs/node"}}, "additionalProperties": False}}}

# (schema of the property `v`, values that fit, values that do not)
KEYWORDS: tuple[tuple[dict[str, Any], tuple[Any, ...], tuple[Any, ...]], ...] = (
    ({"type": "string"}, ("", "x"), (1, None, [], {}, True)),
    ({"type": "integer"}, (1, -1, 2.0), (1.5, True, "1")),
    ({"type": "number"}, (1, 1.5), (False, "1")),
    ({"type": "boolean"}, (True, False), (0, 1, "true")),
    ({"type": "null"}, (None,), (0, "", False)),
    ({"type": ["string", "null"]}, ("x", None), (1,)),
    ({"enum": ["a", 1]}, ("a", 1, 1.0), ("b", True, None)),
    ({"const": False}, (False,), (0, None)),
    ({"minimum": 1, "maximum": 3}, (1, 3, "x"), (0, 4)),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, (2,), (1, 3)),
    ({"minLength": 1, "maxLength": 2}, ("a", "ab", 7), ("", "abc")),
    ({"minItems": 1, "maxItems": 2}, ([1], [1, 2]), ([], [1, 2, 3])),
    ({"uniqueItems": True}, ([1, 2], []), ([1, 1], [{"a": 1}, {"a": 1}])),
    ({"items": {"type": "string"}}, ([], ["a"]), ([1], ["a", None])),
    ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, ({"a": "x", "b": 1},), ({}, {"a": 1})),
    ({"additionalProperties": False, "properties": {"a": {}}}, ({}, {"a": 1}), ({"b": 1},)),
    ({"additionalProperties": {"type": "string"}}, ({"b": "x"},), ({"b": 1},)),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ("x", None), (1,)),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, (1.5,), (1, "x")),
    ({"allOf": [{"type": "string"}, {"minLength": 2}]}, ("ab",), ("a", 1)),
    ({"description": "words", "default": 1, "format": "date"}, (1, "x", None), ()),
)


@pytest.mark.parametrize("row", KEYWORDS, ids=lambda row: str(row[0]))
def test_keywords(row: tuple[dict[str, Any], tuple[Any, ...], tuple[Any, ...]]) -> None:
    """Each keyword lets through what it describes, and names the place of what it does not."""
    inner, fits, fails = row
    schema = {"type": "object", "properties": {"v": inner}}
    check_schema(schema, "schema")
    for value in fits:
        validate({"v": value}, schema, "input")
    for value in fails:
        with pytest.raises(RequestError) as caught:
            validate({"v": value}, schema, "input")
        assert caught.value.field.startswith("input.v")


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        {},
        {"type": "string"},
        {"type": "object", "patternProperties": {}},
        {"type": "object", "properties": {"a": {"pattern": "x"}}},
        {"type": "object", "properties": {"a": 1}},
        {"type": "object", "properties": []},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": {"a": {"type": "text"}}},
        {"type": "object", "properties": {"a": {"type": []}}},
        {"type": "object", "properties": {"a": {"minLength": -1}}},
        {"type": "object", "properties": {"a": {"enum": []}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/x"}}},
        {"type": "object", "anyOf": [{"not": {}}]},
    ],
)
def test_a_schema_that_is_not_understood(schema: Any) -> None:
    """Nothing is taken for checked that was not: an unknown keyword or a wrong value of one is refused."""
    with pytest.raises(RequestError) as caught:
        check_schema(schema, "schema")
    assert caught.value.fix


def test_recursion_and_work_are_bounded() -> None:
    """Schemas that refer to themselves check what is there, and no input makes a check endless."""
    schema = {**TREE, "type": "object", "properties": {"v": {"$ref": "#/$defs/node"}}}
    check_schema(schema, "schema")
    validate({"v": {"down": {"down": {}}}}, schema, "input")
    with pytest.raises(RequestError, match="not expected"):
        validate({"v": {"down": {"up": {}}}}, schema, "input")
    loop = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "type": "object", "properties": {"v": {"$ref": "#/$defs/a"}}}
    check_schema(loop, "schema")
    with pytest.raises(RequestError, match="too large"):
        validate({"v": 1}, loop, "input")
    wide = {"type": "object", "properties": {"v": {"type": "array", "items": {"type": "integer"}}}}
    with pytest.raises(RequestError, match="too large"):
        validate({"v": [1] * 60_000}, wide, "input")


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_value_is_a_schema_or_refused(value: Any) -> None:
    """Nothing but RequestError comes out of a schema, whatever it is."""
    try:
        check_schema(value, "schema")
    except RequestError:
        pass
