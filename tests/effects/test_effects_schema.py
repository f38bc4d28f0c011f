# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON Schema that editors use: every shipped table fits it, and it knows the words that the reader knows."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.effects import reader
from sandboxd.effects.languages import LANGUAGES
from sandboxd.effects.roles import ROLES
from sandboxd.effects.tables import BUNDLES, SHIPPED

SCHEMA: dict[str, Any] = json.loads((Path(SHIPPED).parent / "table.schema.json").read_text())
FILES = sorted(file for file in os.listdir(SHIPPED) if file[:-5] not in (*BUNDLES, "env"))
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
KNOWN = frozenset(
    "type properties required additionalProperties items enum pattern anyOf $ref $defs $schema title description".split()  # noqa: SIM905  a list of words
)


def faults(value: Any, schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """What does not fit, for the few keywords that this schema uses (KNOWN)."""
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    if "$ref" in schema:
        yield from faults(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    if "type" in schema and not isinstance(value, TYPES[schema["type"]]):
        yield f"{at} is no {schema['type']}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of the known"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{at}: {value!r} is not like the pattern"
    if "anyOf" in schema and all(any(True for _ in faults(value, one, at)) for one in schema["anyOf"]):
        yield f"{at} is none of the possible"
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for key, inner in value.items():
            rest = schema.get("additionalProperties", {})
            if key in properties:
                yield from faults(inner, properties[key], f"{at}.{key}")
            elif rest is False:
                yield f"{at}.{key} is not known"
            else:
                yield from faults(inner, rest, f"{at}.{key}")
        for key in schema.get("required", ()):
            if key not in value:
                yield f"{at}.{key} is missing"
    if isinstance(value, list) and "items" in schema:
        for number, inner in enumerate(value):
            yield from faults(inner, schema["items"], f"{at}[{number}]")


@pytest.mark.parametrize("file", FILES)
def test_every_shipped_table_fits(file: str) -> None:
    """An editor that checks by the schema has nothing to say about what is shipped."""
    with open(os.path.join(SHIPPED, file), "rb") as opened:
        assert list(faults(tomllib.load(opened), SCHEMA)) == []


@pytest.mark.parametrize("bundle", BUNDLES)
def test_every_bundled_table_fits(bundle: str) -> None:
    """The small tables that share a file fit as well, but for the name, which is their header."""
    with open(os.path.join(SHIPPED, f"{bundle}.toml"), "rb") as opened:
        for name, table in tomllib.load(opened)["tool"].items():
            assert list(faults({"tool": name, **table}, SCHEMA)) == []


def test_the_schema_knows_what_the_reader_knows() -> None:
    """A new key, role or language must be told to editors too."""
    defs = SCHEMA["$defs"]
    assert set(SCHEMA["properties"]) == reader._TOOL_KEYS | {"tool"}
    assert set(defs["level"]["properties"]) == set(reader._LEVEL_KEYS)
    assert set(defs["option"]["properties"]) == set(reader._OPTION_KEYS)
    assert set(defs["when"]["properties"]) == set(reader._WHEN_KEYS)
    assert set(defs["role"]["enum"]) == set(ROLES)
    assert set(SCHEMA["properties"]["language"]["enum"]) == set(LANGUAGES)
    for name in ROLES:
        assert re.search(defs["operands"]["items"]["pattern"], f"{name}...")
        assert re.search(defs["effects"]["items"]["pattern"], f"{name} a b")


WRONG = [
    {"tool": "a"},
    {"tool": "a", "because": "x", "nope": 1},
    {"tool": "a", "because": "x", "operands": ["path.eat"]},
    {"tool": "a", "because": "x", "operands": "text"},
    {"tool": "a", "because": "x", "raw": 1},
    {"tool": "a", "because": "x", "language": "latin"},
    {"tool": "a", "because": "x", "when": [{"count": "few"}]},
    {"tool": "a", "because": "x", "sub": {"b": {"tool": "c"}}},
    {"tool": "a", "because": "x", "example": [{"run": "a"}]},
    {"tool": "a", "because": "x", "options": {"text": 1}},
]


@pytest.mark.parametrize("table", WRONG)
def test_a_wrong_table_does_not_fit(table: dict[str, Any]) -> None:
    """The schema is not so loose that everything fits."""
    assert list(faults(table, SCHEMA))
