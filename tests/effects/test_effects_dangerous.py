# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever else a table says: an option that writes, deletes, runs or changes the system is never read-only, however spelled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd.effects.examples import run
from sandboxd.effects.rows import Arity, Level, Option, Table
from sandboxd.effects.tables import Tables
from sandboxd.model import EffectKind

TABLES = Tables()
_HARD = frozenset((EffectKind.WRITE, EffectKind.DELETE, EffectKind.PROCESS, EffectKind.SYSTEM, EffectKind.OPAQUE))
# Characters that a shell would not pass on as they are.
_SPECIAL = frozenset("'\"*?[#$~`!;&|<>(){}\\")


def levels(table: Table) -> Iterator[tuple[str, Level]]:
    """Each level with the words that lead to it; levels that share their options once."""
    seen: set[tuple[str, ...]] = set()
    todo = [(table.name, table.root)]
    while todo:
        words, level = todo.pop()
        options = tuple(sorted(level.options))
        if options not in seen:
            seen.add(options)
            yield words, level
        todo.extend((f"{words} {name}", sub) for name, sub in level.subs.items())


def hard(option: Option) -> bool:
    return option.role.kind in _HARD or any(standing.role.kind in _HARD for standing in option.effects)


def spellings(option: Option, name: str, words: bool) -> Iterator[str]:
    long = name.startswith("--") or words
    if option.arity is Arity.NONE:
        yield name
    elif name[0] not in "+-":
        yield f"{name}=x"
    else:
        yield f"{name}=x" if long else f"{name}x"
        if option.arity is Arity.REQUIRED:
            yield f"{name} x"


@pytest.mark.parametrize("name", TABLES.names())
def test_an_option_that_does_more_than_read_is_never_read_only(name: str) -> None:
    """Alone, before and after operands, attached and apart: one effect at least is no read."""
    for table in TABLES.find(name):
        missed = [
            command
            for words, level in levels(table)
            for spelled, option in level.options.items()
            if hard(option) and not level.any and _SPECIAL.isdisjoint(spelled)
            for form in spellings(option, spelled, table.words)
            for command in (f"{words} {form}", f"{words} {form} a", f"{words} a b {form}")[: 3 if level.permute else 2]
            if not any(effect.kind in _HARD for effect in run(command, TABLES, TABLES.environment)[0])
        ]
        assert missed == []
