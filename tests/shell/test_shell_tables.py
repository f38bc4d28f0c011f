# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of the shell stage: what is read, what is noted, what is certain; each row also held against the real bash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandboxd.model import CommandKind, Script, Word
from sandboxd.shell.codes import NOTES, REFUSALS
from sandboxd.shell.script import parse
from tests.shell import bash_oracle

CORPUS = Path(__file__).parent.parent / "corpus"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CORPUS / name).read_text().splitlines()]


TRAPS = rows("shell_traps.jsonl")
NOTED = rows("shell_notes.jsonl")
STATIC = rows("shell_static.jsonl")


def shown(word: Word) -> str | list[str] | None:
    return word.value if word.value is not None else list(word.values) or None


@pytest.mark.parametrize("row", TRAPS, ids=lambda row: row["why"])
def test_a_trap_is_read_as_bash_reads_it(row: dict[str, Any]) -> None:
    """Every argv of the row is listed in order, dynamic words as null; or the text is refused."""
    script = parse(row["cmd"])
    got: object = "unparsed"
    if script.unparsed is None:
        got = [[shown(word) for word in command.argv] for command in script.subcommands if command.argv]
    assert got == row["expect"], script.unparsed


@pytest.mark.parametrize("row", NOTED, ids=lambda row: row["cmd"])
def test_what_evaluates_text_is_noted(row: dict[str, Any]) -> None:
    """A construct that evaluates text, or changes how later text runs, carries its own reason code, and nothing else does."""
    script = parse(row["cmd"])
    assert script.unparsed is None
    assert sorted({note.code for command in script.subcommands for note in command.notes}) == row["codes"]


def test_every_note_has_a_row() -> None:
    """No reason code without an example."""
    assert {code for row in NOTED for code in row["codes"]} == set(NOTES)


@pytest.mark.parametrize("row", STATIC, ids=lambda row: row["cmd"])
def test_what_is_certain_is_followed_and_nothing_else(row: dict[str, Any]) -> None:
    """The last `show` of the row has exactly these possible arguments and directories; null is unknown."""
    script = parse(row["cmd"])
    assert script.unparsed is None
    command = [one for one in script.subcommands if one.argv and one.argv[0].value == "show"][-1]
    values = command.argv[1].values
    assert (sorted(values) if values else None) == (sorted(row["values"]) if row["values"] else None)
    assert (command.cwds and sorted(command.cwds)) == (row["cwds"] and sorted(row["cwds"]))


@pytest.mark.needs("bwrap", "userns")
def test_bash_runs_nothing_that_the_tables_do_not_list() -> None:
    """For every row of every table, each argv that the real bash runs, in its directory, is accounted for."""
    texts = [row["cmd"] for row in TRAPS + NOTED + STATIC if "\0" not in row["cmd"]]
    # Rows about a command that may fail: once it succeeds (`c1`), once it fails (`f1`).
    texts += [row["cmd"].replace("c1", "f1") for row in STATIC if "c1" in row["cmd"]]
    read = [(text, parse(text)) for text in texts]
    # What is refused needs no check; what multiplies or never ends is not run, sandbox or not.
    read = [(text, script) for text, script in read if script.unparsed is None and not _endless(text, script)]
    assert _lost([text for text, _ in read], [script for _, script in read]) == []


def _endless(text: str, script: Script) -> bool:
    return bool(script.functions and "b" in script.functions) or "while c1" in text or "fork_bomb" in str(script.subcommands)


def _lost(texts: list[str], scripts: list[Script]) -> list[tuple[str, bash_oracle.Run]]:
    out: list[tuple[str, bash_oracle.Run]] = []
    for text, script, runs in zip(texts, scripts, bash_oracle.run(texts), strict=True):
        if script.unparsed is None and not _runs_text(script):
            assert runs is not None, text
            out.extend((text, one) for one in bash_oracle.missing(script, runs))
    return out


def _runs_text(script: Script) -> bool:
    """Whether a note says that text runs which the stage does not read: its commands are the analysis's affair."""
    hidden = {"shell.eval", "shell.trap", "shell.callback", "shell.alias", "shell.source", "shell.names_evaluated"}
    hidden |= {"shell.test_variable", "shell.evaluates", "shell.option", "shell.prompt", "shell.loads_builtin"}
    return any(note.code in hidden for command in script.subcommands for note in command.notes)


def test_refusals_say_why() -> None:
    """Every refusal of the trap table has a listed reason and a span inside the text."""
    for row in TRAPS:
        script = parse(row["cmd"])
        if script.unparsed is not None:
            assert script.unparsed.reason in REFUSALS
            assert 0 <= script.unparsed.span.start <= script.unparsed.span.end <= len(row["cmd"])
            assert script.subcommands == ()


def test_refused_text_still_yields_its_words() -> None:
    """Deny and ask rules get the literal words of a text that cannot be read."""
    script = parse("!(x) 'rm' -r\\f \"/etc\"; echo `")
    assert script.unparsed is not None
    assert {"rm", "-rf", "/etc", "echo"} <= set(script.unparsed.words)


def test_kinds_and_context() -> None:
    """Tests, arithmetic, loop words and redirected groups are subcommands of their own kind, in their pipe context."""
    script = parse("[[ a ]] && ((1)) ; for v in a; do c1; done | { c2; } >o 2>&1 &\nc3 |& c4")
    kinds = [(command.kind, command.argv[0].value if command.argv else None) for command in script.subcommands]
    assert kinds == [
        (CommandKind.TEST, "[["),
        (CommandKind.ARITHMETIC, "(("),
        (CommandKind.WORDS, "a"),
        (CommandKind.SIMPLE, "c1"),
        (CommandKind.COMPOUND, None),
        (CommandKind.SIMPLE, "c2"),
        (CommandKind.SIMPLE, "c3"),
        (CommandKind.SIMPLE, "c4"),
    ]
    by_name = {command.argv[0].value: command for command in script.subcommands if command.argv}
    assert by_name["c1"].piped_out
    assert not by_name["c1"].piped_in
    assert by_name["c2"].piped_in
    assert by_name["c2"].background
    assert by_name["c4"].operator == "|&"
    assert by_name["c3"].pipeline == by_name["c4"].pipeline != by_name["c2"].pipeline
    assert [redirect.op.value for redirect in script.subcommands[4].redirects] == [">", ">&"]
    assert parse("g() { c1; }; g").functions == ("g",)
    assert [parse(text).changes_cwd for text in ("cd a", "(cd a)", "c1 | cd a", "if c1; then pushd a; fi")] == [
        True,
        False,
        False,
        True,
    ]
