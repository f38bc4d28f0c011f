# SPDX-License-Identifier: GPL-3.0-or-later
"""The shipped tables: each can be read, says why, and does what its own examples say."""

from __future__ import annotations

import os

import pytest

from sandboxd.effects.environment import Environment
from sandboxd.effects.examples import failures
from sandboxd.effects.tables import BUNDLES, SHIPPED, Tables

TABLES = Tables()
NAMES = TABLES.names()


@pytest.mark.parametrize("name", NAMES)
def test_every_example_of_a_table_holds(name: str) -> None:
    """Each `[[example]]` row has exactly the effects that it claims."""
    for table in TABLES.find(name):
        assert list(failures(table, TABLES, TABLES.environment)) == []


def test_every_table_explains_itself_and_shows_examples() -> None:
    """A table names what it was made from; all but the bundled small ones have examples."""
    bare = []
    for name in NAMES:
        (table,) = TABLES.find(name)
        assert table.root.because, name
        bundled = os.path.basename(table.origin).partition(".")[0] in BUNDLES
        if not bundled and not table.examples:
            bare.append(name)
    assert bare == []


def test_every_file_of_the_folder_is_a_tool_or_known_otherwise() -> None:
    """No file lies in the folder unread."""
    files = {file[:-5] for file in os.listdir(SHIPPED)}
    assert files - {*BUNDLES, "env"} <= set(NAMES)


def test_environment_rules_are_read() -> None:
    """What programs act on is special, what only colours is harmless, and nothing is both harmless and unknown."""
    environment = TABLES.environment
    assert isinstance(environment, Environment)
    for name in ("PATH", "LD_PRELOAD", "BASH_ENV", "GIT_DIR", "IFS", "PS4", "PYTHONPATH", "NODE_OPTIONS", "LESSOPEN", "MANPAGER"):
        assert not environment.ordinary(name), name
        assert not environment.harmless(name, None), name
    for name in ("x", "files", "count_1", "my_PATH_x"):
        assert environment.ordinary(name), name
        assert not environment.harmless(name, None), name
    assert environment.harmless("NO_COLOR", None)
