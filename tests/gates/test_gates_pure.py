# SPDX-License-Identifier: GPL-3.0-or-later
"""Deciding code is pure: text and facts come in as arguments, a value comes out; no disk, process, network or clock.

What a pure module imports itself is held to a list of what is allowed, since unknown is never safe; what it reaches
through others is the contract `pure` of pyproject.toml.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# To add a pure module or package: its path here. Whole packages are pure, so a new file in them is from its first line.
PURE = ("model", "errors.py", "paths.py", "globs.py", "memory.py", "killswitch.py", "sensitive.py", "shell", "effects",
        "analyze.py", "policy", "schemas.py", "toolbox.py", "toolcalls.py",
        "schedule/lanes.py", "isolation/entries.py", "isolation/environment.py", "isolation/gitmounts.py",
        "isolation/guards.py", "isolation/plan.py", "isolation/view.py", "isolation/violations.py",
        "observe/gitconfig.py", "observe/gitrepair.py", "consult/verdict.py", "consult/transcript.py",
        "consult/circuit.py", "consult/classifier_prompt.py")  # fmt: skip
IMPURE = ("effects/tables.py",)  # loads the tables, once

# To allow a module: add it when it touches neither disk, process, network, clock nor chance.
ALLOWED = frozenset((
    "__future__", "abc", "base64", "binascii", "bisect", "collections", "copy", "dataclasses", "difflib", "enum", "fnmatch",
    "functools", "hashlib", "heapq", "html", "ipaddress", "itertools", "json", "keyword", "math", "operator", "re", "shlex",
    "string", "struct", "textwrap", "tomllib", "types", "typing", "unicodedata", "urllib.parse", "bashlex", "sandboxd"
))  # fmt: skip
# Built-in functions that reach outside, or run text as code.
FORBIDDEN_CALLS = frozenset(("open", "eval", "exec", "compile", "__import__", "input", "print", "breakpoint"))
FORBIDDEN_NAMES = frozenset(("__builtins__", "__loader__", "__spec__"))


def impurities(source: str) -> list[str]:
    """What in `source` a pure module may not do, as `line: what`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [f"{node.lineno}: import {each.name}" for each in names if not _allowed(each.name)]
            case ast.ImportFrom(module=str(module), level=0) if not any(
                _allowed(f"{module}.{each.name}") or _allowed(module) for each in node.names
            ):
                found.append(f"{node.lineno}: from {module} import")
            case ast.ImportFrom(level=level) if level > 0:
                found.append(f"{node.lineno}: relative import")
            case ast.Name(id=name) if name in FORBIDDEN_CALLS | FORBIDDEN_NAMES and isinstance(node.ctx, ast.Load):
                found.append(f"{node.lineno}: {name}")
            case ast.Attribute(attr="__builtins__" | "__loader__" | "__globals__" | "__subclasses__" as name):
                found.append(f"{node.lineno}: .{name}")
    return found


def _allowed(module: str) -> bool:
    pieces = module.split(".")
    return any(".".join(pieces[:count]) in ALLOWED for count in range(1, len(pieces) + 1))


def pure_modules() -> list[Path]:
    package = ROOT / "sandboxd"
    files: list[Path] = []
    for name in PURE:
        place = package / name
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [file for file in files if str(file.relative_to(package)) not in IMPURE]


def test_deciding_code_is_pure() -> None:
    """No pure module opens, runs, asks the clock or imports what does."""
    assert {file: found for file in pure_modules() if (found := impurities(file.read_text(encoding="utf-8")))} == {}


def test_the_lists_name_what_exists() -> None:
    """A module that was renamed does not leave the gate by that."""
    assert [name for name in (*PURE, *IMPURE) if not (ROOT / "sandboxd" / name).exists()] == []


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "import os.path as p",
        "from os import path",
        "import subprocess",
        "import socket",
        "import asyncio",
        "import time",
        "from time import monotonic",
        "import pathlib",
        "from pathlib import PurePath",
        "import datetime",
        "import random",
        "import threading",
        "import grpc",
        "import anthropic",
        "import psutil",
        "import importlib",
        "import sys",
        "import logging",
        "import secrets",
        "import json, os",
        "from . import tables",
        "from concurrent.futures import Future",
        "from urllib.request import urlopen",
        "def f():\n    import os",
        "if True:\n    import os",
        "text = open('x').read()",
        "with open('x') as f: pass",
        "read = open",
        "list(map(open, names))",
        "eval('1')",
        "exec('1')",
        "compile('1', '', 'eval')",
        "__import__('os')",
        "__builtins__['open']('x')",
        "f.__globals__['open']",
        "print('x')",
    ],
)
def test_the_gate_is_red_for(source: str) -> None:
    """Each way out of purity is seen, wherever it stands in the module."""
    assert impurities(source)


@pytest.mark.parametrize(
    "source",
    [
        "import re, json",
        "from urllib.parse import urlsplit",
        "from collections.abc import Iterator",
        "from sandboxd.model import Word",
        "import tomllib",
        "def reopen(): return reopen",
        "word.open",
        "text = 'open(1)'  # open(1)",
    ],
)
def test_the_gate_is_green_for(source: str) -> None:
    """Plain code, and a word that merely looks like a call, pass."""
    assert impurities(source) == []
