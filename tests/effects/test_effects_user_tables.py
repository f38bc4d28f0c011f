# SPDX-License-Identifier: GPL-3.0-or-later
"""A user's own tables: one file adds a tool, none loosens what is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.analyze import analyze
from sandboxd.effects.tables import Tables
from sandboxd.errors import TableError
from sandboxd.judge import Question, judge
from sandboxd.model import Behavior, RuleSet, Scope
from tests.effects.effects_cases import CONTEXT, CWD, HOME, changes

LINT = """
tool = "ourlint"
because = "our own linter: reads sources, --fix changes them"
operands = ["path.read..."]
options.text = "-q|--quiet"

[[option]]
names = "--fix"
effects = ["path.edit"]

[[example]]
run = "ourlint -q a.c"
is = ["read-only", "read a.c"]

[[example]]
run = "ourlint --fix a.c"
is = "write"
"""


def folder(tmp_path: Path, **files: str) -> Tables:
    for name, text in files.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return Tables((str(tmp_path),))


def test_one_file_adds_a_tool(tmp_path: Path) -> None:
    """A tool that nobody ships is understood once its file lies in the folder, and unknown without it."""
    tables = folder(tmp_path, ourlint=LINT)
    tables.check()
    assert "ourlint" in tables.names()
    assert analyze("ourlint -q a.c | sort", CONTEXT, tables).read_only
    assert not analyze("ourlint --fix a.c", CONTEXT, tables).read_only
    assert not analyze("ourlint --nope a.c", CONTEXT, tables).read_only
    assert not analyze("ourlint -q a.c", CONTEXT).read_only


def test_a_judge_that_is_given_them_uses_them(tmp_path: Path) -> None:
    """The whole decision rests on the user's table: what it calls a read is allowed."""
    tables = folder(tmp_path, ourlint=LINT)
    question = Question("ourlint -q a.c", CWD, Scope(CWD, HOME), RuleSet(), tables=tables)
    assert judge(question).decision.behavior is Behavior.ALLOW
    assert judge(Question("ourlint -q a.c", CWD, Scope(CWD, HOME), RuleSet())).decision.behavior is Behavior.ASK


def test_a_shipped_tool_can_only_be_tightened(tmp_path: Path) -> None:
    """Both tables are asked: the user's effects come on top, what is shipped stays."""
    loose = 'tool = "rm"\nbecause = "x"\noperands = ["text..."]\ninert = true\n'
    tight = 'tool = "cat"\nbecause = "x"\noperands = ["path.read..."]\neffects = ["opaque.program"]\n'
    tables = folder(tmp_path, rm=loose, cat=tight)
    assert any(changes(effect) for effect in analyze("rm a", CONTEXT, tables).effects)
    assert not analyze("cat a", CONTEXT, tables).read_only
    assert analyze("cat a", CONTEXT).read_only


@pytest.mark.parametrize("name", ["env", "timeout", "builtins", "wrappers", "cd"])
def test_names_of_bundled_files_are_no_way_around(tmp_path: Path, name: str) -> None:
    """A file named like one that ships several tools is a table of the tool of that name."""
    text = f'tool = "{name}"\nbecause = "x"\noperands = ["text..."]\neffects = ["opaque.program"]\n'
    tables = folder(tmp_path, **{name: text})
    assert not analyze(f"{name} a ls", CONTEXT, tables).read_only
    assert tables.environment == Tables().environment


WRONG = [
    ("brew", 'tool = "brew"\n', "brew.toml:1"),
    ("brew", 'tool = "brew"\nbecause = "x"\nany = true\n', "brew.toml:3"),
    ("brew", 'tool = "brew"\nbecause = "x"\n[[example]]\nrun = "brew a"\nis = "read-only"\n', "brew.toml:4"),
    ("brew", 'tool = "brew"\nbecause = "x"\nsame_as = "no-such-tool"\n', "names no table"),
    ("a b", 'tool = "a b"\nbecause = "x"\n', "no command can have this name"),
]


@pytest.mark.parametrize(("name", "text", "said"), WRONG)
def test_a_wrong_table_is_one_clear_error(tmp_path: Path, name: str, text: str, said: str) -> None:
    """check() names file and line; a line that meets the wrong table in spite of it is opaque, not read by half of it."""
    tables = folder(tmp_path, **{name: text})
    with pytest.raises(TableError) as caught:
        tables.check()
    assert said in str(caught.value)
    if " " not in name:
        analysis = analyze(f"{name} a", CONTEXT, tables)
        assert [effect.code for effect in analysis.effects if changes(effect)] == ["opaque.table_error"]


def test_no_folder_is_an_empty_folder(tmp_path: Path) -> None:
    """Most users have no tables of their own."""
    tables = Tables((str(tmp_path / "effects"),))
    tables.check()
    assert tables.names() == Tables().names()
