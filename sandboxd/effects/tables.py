# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known about each tool: finds its table, reading the file on first use (docs/tables.md is the reference).

To add a tool: one file `data/<tool>.toml`, nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

from sandboxd.effects.environment import Environment, parse_environment
from sandboxd.effects.examples import failures
from sandboxd.effects.reader import parse_bundle, parse_table
from sandboxd.effects.rows import Table
from sandboxd.errors import TableError

SHIPPED = os.path.join(os.path.dirname(__file__), "data")
# Files that hold several small tools, each as `[tool.NAME]`.
BUNDLES = ("builtins", "wrappers")
# Files in the same folder that are no tool tables.
_MAX_ABSENT = 8_192  # names of no tool that are remembered
_NO_TOOL = frozenset((*BUNDLES, "env"))
_MAX_NAME = 200  # bytes, as it is ASCII: a file's name with `.toml` has at most 255
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]{,199}\Z|(?:\[\[?|[:.])\Z")


class _Alone:
    """One table by itself, the others as they are: what its examples are run against."""

    def __init__(self, table: Table, rest: Tables) -> None:
        self._table = table
        self._rest = rest

    def find(self, name: str) -> tuple[Table, ...]:
        return (self._table,) if name == self._table.name else self._rest.find(name)


class Tables:
    """Effect tables of the shipped folder and of `folders`, which may add tools and tighten shipped ones.

    What is read is kept: a folder that changed needs a new Tables. A folder that does not exist is an empty one.
    """

    def __init__(self, folders: tuple[str, ...] = ()) -> None:
        self._folders = folders
        self._found: dict[str, tuple[Table, ...]] = {}
        self._absent: set[str] = set()
        self._bundled: dict[str, dict[str, Table]] = {}
        self._environment: Environment | None = None

    @property
    def environment(self) -> Environment:
        """The rules for variables (data/env.toml)."""
        if self._environment is None:
            path = os.path.join(SHIPPED, "env.toml")
            with open(path, encoding="utf-8") as file:
                self._environment = parse_environment(file.read(), path)
        return self._environment

    def find(self, name: str) -> tuple[Table, ...]:
        """The tables of the tool: none when it is not known, several when user tables tighten a shipped one.

        Raises TableError when a table of this name is wrong.
        """
        found = self._found.get(name)
        if found is None:
            if name in self._absent:
                return ()
            found = tuple(self._load(name))
            if found:
                self._found[name] = found
            else:
                if len(self._absent) >= _MAX_ABSENT:
                    self._absent.clear()  # anybody can ask for as many as he likes
                self._absent.add(name)
        return found

    def names(self) -> tuple[str, ...]:
        """All tools known, sorted."""
        names: set[str] = set()
        for folder in self._folders:
            names.update(_files(folder))
        names.update(name for name in _files(SHIPPED) if name not in _NO_TOOL)
        return tuple(sorted(names | set(self._bundle(SHIPPED))))

    def check(self) -> None:
        """Read every table of `folders` and run its examples. Raises TableError at the first that is wrong."""
        for folder in self._folders:
            for name in _files(folder):
                if not _NAME.match(name):
                    raise TableError("no command can have this name", origin=os.path.join(folder, f"{name}.toml"))
                self.find(name)

    def exit_ok(self, name: str) -> frozenset[int]:
        """The exit statuses of the tool that are results, not failures."""
        return frozenset((0,)).union(*(table.exit_ok for table in self.find(name)))

    def _load(self, name: str) -> Iterator[Table]:
        if len(name) > _MAX_NAME or not _NAME.match(name):
            return
        for folder in (SHIPPED, *self._folders):
            path = os.path.join(folder, f"{name}.toml")
            table = self._bundle(folder).get(name) if folder == SHIPPED else None
            if table is None:
                if folder == SHIPPED and name in _NO_TOOL:
                    continue
                try:
                    with open(path, encoding="utf-8") as file:
                        text = file.read()
                except FileNotFoundError:
                    continue
                table = parse_table(text, path, name)
                if folder != SHIPPED:
                    self._hold(table)
            if table.same_as:
                target = self.find(table.same_as)
                if not target or any(other.same_as for other in target):
                    raise TableError(f'`same_as = "{table.same_as}"` names no table', origin=table.origin)
                yield from (replace(other, name=name) for other in target)
            else:
                yield table

    def _hold(self, table: Table) -> None:
        """The examples of a user's table must hold; shipped ones are run by the tests."""
        alone = _Alone(table, self)
        for failure in failures(table, alone, self.environment):
            origin, _, message = failure.partition(": ")
            raise TableError(message, origin=origin)

    def _bundle(self, folder: str) -> dict[str, Table]:
        found = self._bundled.get(folder)
        if found is None:
            found = {}
            for bundle in BUNDLES:
                path = os.path.join(folder, f"{bundle}.toml")
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                for name, table in parse_bundle(text, path).items():
                    found[name] = replace(table, builtin=bundle == "builtins")
            self._bundled[folder] = found  # only when it is whole: other threads may be asking
        return found


def _files(folder: str) -> list[str]:
    """The names of the table files in a folder, sorted; none when there is no such folder."""
    try:
        return sorted(file[:-5] for file in os.listdir(folder) if file.endswith(".toml"))
    except FileNotFoundError:
        return []
