# SPDX-License-Identifier: GPL-3.0-or-later
"""What every test keeps: a promise in words, no sleeping, no mocks of what it protects, a name that nobody else has."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import PurePosixPath

import pytest

from tests.gates._tree import python, read

MODULES = tuple(name for name in python() if name.startswith("tests/"))


def lapses(source: str) -> list[str]:
    """What in a test module goes against tests/README.md, as `line: what`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                if not ast.get_docstring(node):
                    found.append(f"{node.lineno}: {name} makes no promise (a docstring)")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time" | "asyncio" as module), attr="sleep"), args=[argument]):
                if not (module == "asyncio" and isinstance(argument, ast.Constant) and argument.value == 0):
                    found.append(f"{node.lineno}: {module}.sleep")
            case ast.ImportFrom(module="time", names=names) if any(each.name == "sleep" for each in names):
                found.append(f"{node.lineno}: time.sleep")
            case ast.ImportFrom(module="unittest.mock" | "mock"):
                found.append(f"{node.lineno}: mock")
            case ast.ImportFrom(module="unittest", names=names) if any(each.name == "mock" for each in names):
                found.append(f"{node.lineno}: mock")
            case ast.Import(names=names) if any(each.name in ("unittest.mock", "mock") for each in names):
                found.append(f"{node.lineno}: mock")
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="pytest"), attr="mark"), attr="xfail" | "skip" as mark):
                found.append(f"{node.lineno}: pytest.mark.{mark}")
    return found


def test_tests_keep_their_conventions() -> None:
    """Each test says what it promises; none sleeps, mocks, or is switched off."""
    assert {name: found for name in MODULES if (found := lapses(read(name)))} == {}


def test_module_names_are_unique() -> None:
    """No two test modules have one name, so a report names one file."""
    names = Counter(PurePosixPath(name).name for name in MODULES if PurePosixPath(name).name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    "source",
    [
        "def test_x(): pass",
        "async def test_x(): pass",
        "class TestX:\n    def test_x(self): pass",
        "import time\ntime.sleep(1)",
        "from time import sleep",
        "import asyncio\nasync def f(): await asyncio.sleep(0.1)",
        "from unittest.mock import patch",
        "from unittest import mock",
        "import unittest.mock",
        "@pytest.mark.xfail\ndef test_x():\n    'x'",
        "@pytest.mark.skip(reason='later')\ndef test_x():\n    'x'",
    ],
)
def test_the_gate_is_red_for(source: str) -> None:
    """Each lapse is seen, also in methods and coroutines."""
    assert lapses(source)


@pytest.mark.parametrize(
    "source", ["def test_x():\n    'A promise.'", "def helper(): pass", "async def f(): await asyncio.sleep(0)"]
)
def test_the_gate_is_green_for(source: str) -> None:
    """A promise, a helper, and giving way to the loop pass."""
    assert lapses(source) == []
