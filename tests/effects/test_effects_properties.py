# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds for every text and every command, not only for those somebody thought of."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sandboxd.effects.examples import words
from sandboxd.effects.languages import awk, sed, sql
from sandboxd.effects.tables import Tables
from sandboxd.model import Effect, EffectKind
from tests.effects.effects_cases import changes, rows, understood

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TABLES = Tables()
TOOLS = TABLES.names()
READONLY = [row["cmd"] for row in rows("readonly") if "\n" not in row["cmd"] and "#" not in row["cmd"]]

PIECES = st.sampled_from(
    [
        *(
            "ls",
            "cat",
            "rm",
            "sort",
            "sed",
            "awk",
            "find",
            "xargs",
            "git",
            "log",
            "tar",
            "env",
            "bash",
            "-c",
            "-o",
            "-exec",
            "{}",
            "\\;",
        ),
        *(
            "'",
            '"',
            "$x",
            '"$x"',
            "$(",
            ")",
            "`",
            "|",
            "&&",
            ";",
            "\n",
            ">",
            "<",
            "<<E",
            "E",
            "{",
            "}",
            "[[",
            "]]",
            "((",
            "))",
            "*",
            "~",
        ),
        *(
            " ",
            " ",
            " ",
            " ",
            "a",
            "=",
            "-",
            "--",
            "\\",
            "/",
            ".git",
            "if",
            "then",
            "fi",
            "for",
            "in",
            "do",
            "done",
            "$'\\x",
            "é",
            "\t",
        ),
    ]
)
TEXT = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=14).map("".join), st.lists(PIECES, max_size=10).map(" ".join))


def whole(effect: Effect) -> bool:
    """Whether the fields of an effect fit its kind."""
    if effect.kind in (EffectKind.WRITE, EffectKind.DELETE):
        return effect.act is not None and (effect.target is None or effect.target.startswith("/"))
    if effect.kind is EffectKind.NETWORK:
        return effect.direction is not None
    if effect.kind is EffectKind.OPAQUE:
        return bool(effect.code)
    return True


@QUICK
@given(TEXT)
def test_no_text_breaks_the_analysis(text: str) -> None:
    """Any text gets an analysis: never an exception inside, and read-only only when nothing changes and all was read."""
    analysis = understood(text)
    if analysis.unparsed is not None:
        assert analysis.unparsed.reason != "unparsed.internal", analysis.unparsed.detail
        assert not analysis.read_only
    assert analysis.read_only is (analysis.unparsed is None and not any(changes(effect) for effect in analysis.effects))
    for effect in analysis.effects:
        assert whole(effect), effect
        assert effect.because
        assert 0 <= effect.span.start <= effect.span.end <= len(text)


@QUICK
@given(st.sampled_from(TOOLS), st.lists(PIECES, max_size=6).map(" ".join))
def test_no_arguments_break_a_tool(tool: str, arguments: str) -> None:
    """Whatever stands behind a known tool's name, its table and its language answer."""
    analysis = understood(f"{tool} {arguments}")
    assert analysis.unparsed is None or analysis.unparsed.reason != "unparsed.internal", analysis.unparsed.detail


# Here such a word is text by the tool's own rules: nothing is an option (raw), or nothing behind the first operand.
TEXT_FIRST = frozenset(("[", "[[", "dirs", "echo", "getopt", "getopts", "popd", "pushd", "test"))
TEXT_BEHIND = frozenset((*TEXT_FIRST, "awk", "gawk", "mawk", "nawk", "printf", "set"))


@pytest.mark.parametrize("tool", TOOLS)
def test_an_unlisted_option_is_never_read_only(tool: str) -> None:
    """No tool accepts an option that its table does not list, before or behind its operands, alone or with a value."""
    for option in ("--xq-unlisted", "--xq-unlisted=a"):
        if tool not in TEXT_FIRST:
            assert not understood(f"{tool} {option}").read_only
            assert not understood(f"{tool} {option} a").read_only
        if tool not in TEXT_BEHIND:
            assert not understood(f"{tool} a {option}").read_only


@QUICK
@given(st.sampled_from(READONLY), st.text("abcdefghijklmnopqrstuvwxyz-=", min_size=1, max_size=12))
def test_more_options_never_make_a_line_harmless(line: str, name: str) -> None:
    """An unlisted option behind the first word of a harmless line makes it opaque, whatever its name goes on with."""
    head, _, rest = line.partition(" ")
    assume(head in TOOLS and head not in TEXT_FIRST)
    assert not understood(f"{head} --xq{name} {rest}").read_only


@QUICK
@given(
    st.sampled_from([row["cmd"] for row in rows("mutates")]),
    st.sampled_from(READONLY),
    st.sampled_from([" && ", "; ", " || ", " | ", "\n"]),
)
def test_company_does_not_whitewash(bad: str, good: str, joint: str) -> None:
    """What changes something does so behind, before and inside whatever else the line does."""
    assume(not any(piece in bad for piece in ("<<", "#", "\\\n", "$")))  # `$`: the other line may make its value known
    assert not understood(f"{good}{joint}{bad}").read_only
    assert not understood(f"({bad})").read_only
    assert not understood(f"if {good}; then {bad}\nfi").read_only


@QUICK
@given(st.text("swWrRedp;{}/ab\\\n,!1$ []", max_size=25))
def test_sed_reader_ends_with_an_answer(script: str) -> None:
    """Any script is read or refused."""
    for brackets in (True, False):
        try:
            sed.actions(script, brackets)
        except sed.NotSed:
            pass


@QUICK
@given(st.text("print>|getline<\"'/(){};$12+- \n\\[]@", max_size=30))
def test_awk_reader_ends_with_an_answer(program: str) -> None:
    """Any program is read or refused, and a pipe or a redirect behind print is never lost."""
    try:
        found = awk.actions(program)
    except awk.NotAwk:
        return
    assert all(name in ("run", "path.write", "path.append", "path.read", "environ") for name, _ in found)


@QUICK
@given(st.text(max_size=40))
def test_sql_reader_ends_with_an_answer(text: str) -> None:
    """Any text is a known read or it is not."""
    assert sql.reads_only(text) in (True, False)


@QUICK
@given(st.text("ab $'\"\\*?[]~{}()", max_size=30))
def test_words_of_examples_are_split_or_refused(text: str) -> None:
    """The splitter of example rows loses no word."""
    try:
        found = list(words(text))
    except (ValueError, IndexError):
        return
    assert all(word.span.start < word.span.end for word in found)
