# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers of system calls on both architectures, against the kernel's own headers where they are installed.

The header of aarch64 is asm-generic/unistd.h itself, which lies on every machine that has any. The numbers of the filter's
tables are compared in test_isolation_seccomp.py.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from sandboxd.isolation import kernel, zygote_mounts
from sandboxd.isolation.seccomp import ARCHES, DENIED, OPTIONAL

SOURCES = Path(kernel.__file__).parents[1]
HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}
# What the modules call their numbers, where that is not `SYS_` and the kernel's name.
NAMES = {
    "SYS_LANDLOCK_CREATE": "landlock_create_ruleset",
    "SYS_LANDLOCK_ADD": "landlock_add_rule",
    "SYS_LANDLOCK_RESTRICT": "landlock_restrict_self",
    "_OPENAT2": "openat2",
    "CREATE_RULESET": "landlock_create_ruleset",
}


@lru_cache
def constants(machine: str) -> dict[str, int]:
    """The numbers by their names in the sources, as the assignments there make them on such a machine."""
    found: dict[str, int] = {}
    for path in sorted((SOURCES / "isolation").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and any(_is_number(name) for name in _targets(node)):
                made: dict[str, object] = {"AARCH64": machine == "aarch64"}
                exec(compile(ast.Module([node], []), path.name, "exec"), made)  # a line of our own sources
                found |= {name: value for name, value in made.items() if _is_number(name) and isinstance(value, int)}
    return found


def _is_number(name: str) -> bool:
    return name.startswith("SYS_") or name in NAMES


def _targets(node: ast.Assign) -> list[str]:
    return [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]


@lru_cache
def header(machine: str) -> dict[str, int]:
    path = Path(HEADERS[machine])
    if not path.exists():
        pytest.skip(f"no {path}")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text(encoding="utf-8"))
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize("machine", sorted(HEADERS))
def test_every_number_that_is_called_is_the_kernels(machine: str) -> None:
    """What makes boxes calls the same system calls on both architectures."""
    numbers = header(machine)
    ours = {NAMES.get(name, name.removeprefix("SYS_").lower()): number for name, number in constants(machine).items()}
    assert ours == {name: numbers[name] for name in ours}


@pytest.mark.parametrize("machine", sorted(HEADERS))
def test_calls_whose_arguments_are_filtered_are_the_kernels(machine: str) -> None:
    """The filter looks at the arguments of the right calls."""
    numbers, arch = header(machine), ARCHES[machine]
    for name in ("clone", "clone3", "socket", "socketpair", "ioctl"):
        assert getattr(arch, name) == numbers[name], name


@pytest.mark.parametrize("machine", sorted(HEADERS))
def test_a_call_without_a_number_does_not_exist_there(machine: str) -> None:
    """No call stays open on one architecture because its number was left out."""
    numbers, column = header(machine), ARCHES[machine].column
    assert [name for name, row in {**DENIED, **OPTIONAL}.items() if row[column] is None and name in numbers] == []


def test_this_machine_uses_its_own_numbers() -> None:
    """The numbers that were chosen at import are those of the machine which runs this."""
    expected = constants(os.uname().machine)
    chosen = {name: value for name, value in vars(zygote_mounts).items() if name.startswith("SYS_")}
    assert chosen
    assert chosen == {name: expected[name] for name in chosen}


def called() -> Iterator[tuple[str, ast.expr]]:
    """Where the sources call the kernel by number: place, and the number's expression."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            place = f"{path.relative_to(SOURCES)}:{node.lineno}"
            if isinstance(node.func, ast.Attribute) and node.func.attr == "syscall":
                yield place, node.args[0]
            elif isinstance(node.args[0], ast.Constant) and node.args[0].value == "syscall" and len(node.args) > 1:
                yield place, node.args[1]


def test_no_number_stands_where_it_is_called() -> None:
    """Every call goes by a name that is compared above, so none works on one architecture only."""
    known = constants(os.uname().machine)
    seen = set()
    for place, number in called():
        name = number.attr if isinstance(number, ast.Attribute) else number.id if isinstance(number, ast.Name) else ""
        assert name in known, f"{place} calls by a number that no test knows"
        seen.add(name)
    assert seen == set(known), "a number that nothing calls any more, or that is not found"
