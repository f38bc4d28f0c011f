# SPDX-License-Identifier: GPL-3.0-or-later
"""Explaining a tool: nothing that the table says is left out, and what is unlisted is said to be."""

from __future__ import annotations

import pytest

from sandboxd.effects.describe import ToolText, describe
from sandboxd.effects.tables import Tables

TABLES = Tables()


def tool(name: str) -> ToolText:
    (text,) = describe(TABLES.find(name))
    return text


def test_an_unlisted_tool_has_no_description() -> None:
    """No table, no text: the caller says that it is opaque."""
    assert describe(TABLES.find("no-such-tool")) == ()


def test_sort_is_told_with_its_dangers() -> None:
    """Options that write or run stand apart from the harmless ones, with their role."""
    sort = tool("sort")
    (root,) = sort.levels
    dangers = {option.names: option.role for option in root.dangerous}
    assert dangers["-o|--output="] == "path.write"
    assert dangers["--compress-program="] == "opaque.program"
    assert any(option.names.startswith("-u|") for option in root.harmless)
    assert root.operands == ("path.read...",)
    assert sort.because
    assert sort.examples


def test_subcommands_are_levels_with_their_path() -> None:
    """git's subcommands are named as they are typed."""
    git = tool("git")
    names = [level.name for level in git.levels]
    assert names[0] == ""
    assert any(name.split("|")[0] == "log" or "log" in name.split("|") for name in names)
    assert len(names) == len(set(names))
    assert all(level.because for level in git.levels)


def test_conditions_are_told_in_words() -> None:
    """What options and counts change reads like a sentence."""
    texts = [when for name in TABLES.names() for level in tool(name).levels for when in level.when]
    assert any(text.startswith("with ") and "operands" in text for text in texts)


@pytest.mark.parametrize("name", TABLES.names())
def test_every_table_can_be_told(name: str) -> None:
    """Each option of each level stands in exactly one of the two lists."""
    for table, text in zip(TABLES.find(name), describe(TABLES.find(name)), strict=True):
        assert text.name == name
        root = text.levels[0]
        spelled = [one for option in (*root.dangerous, *root.harmless) for one in option.names.rstrip("=[]").split("|")]
        assert sorted(spelled) == sorted(key for key in table.root.options)
