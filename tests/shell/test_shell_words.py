# SPDX-License-Identifier: GPL-3.0-or-later
"""Words: flags, parts and spans."""

from __future__ import annotations

import pytest

from sandboxd.model import Part, PartKind, RedirectOp, Word, WordFlag
from sandboxd.shell.script import parse

G, T, V, S, X = WordFlag.GLOB, WordFlag.TILDE, WordFlag.VARIABLE, WordFlag.SPLITS, WordFlag.SUBSTITUTION
P, A, E, D, B = WordFlag.PROCESS, WordFlag.ARITHMETIC, WordFlag.EVALUATES, WordFlag.ASSIGNS, WordFlag.BRACE


def word(text: str) -> Word:
    script = parse("c1 " + text)
    assert script.unparsed is None, script.unparsed
    return script.subcommands[-1].argv[1]


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("a", set()),
        ("'*'", set()),
        ("\\*", set()),
        ('"*~{a,b}"', set()),
        ("*", {G, S}),
        ("a?", {G, S}),
        ("[ab]", {G, S}),
        ("[", set()),
        ("a]", set()),
        ("[a", set()),
        ("[]", set()),
        ("[]]", {G, S}),
        ("['a']", {G, S}),
        ("~", {T}),
        ("~/a", {T}),
        ("~root/a", {T}),
        ("~+", {T}),
        ("a~", set()),
        ("'~'", set()),
        ("~'a'", set()),
        ("~$v", {V, S}),
        ("V=~", {T}),
        ("V=a:~/b", {T}),
        ("--v=~", set()),
        ("$v", {V, S}),
        ('"$v"', {V}),
        ("${v}", {V, S}),
        ('"$@"', {V, S}),
        ('"$*"', {V}),
        ('"${a[@]}"', {V, S}),
        ('"${a[*]}"', {V}),
        ('"${a[0]}"', {V}),
        ('"${#a[@]}"', {V}),
        ('"${a[i]}"', {V, E}),
        ('"${@:1}"', {V, S}),
        ('"${v:1:2}"', {V}),
        ('"${v:n}"', {V, E}),
        ('"${!v}"', {V, E}),
        ('"${!v@}"', {V, S}),
        ('"${!a[@]}"', {V, S}),
        ('"${v@P}"', {V, E}),
        ('"${v@Q}"', {V}),
        ('"${v:=w}"', {V, D}),
        ('"${v:-$(c2)}"', {V, X}),
        ('"${v:-${w:=a}}"', {V, D}),
        ("$(c2)", {X, S}),
        ('"$(c2)"', {X}),
        ("`c2`", {X, S}),
        ("<(c2)", {P}),
        ("$((1))", {A}),
        ("$((v))", {A, E}),
        ("$(($v))", {A, E}),
        ("$((0x1f + 16#ff))", {A}),
        ("$(($# + $?))", {A}),
        ("$[v]", {A, E}),
        ("{1..999}", {B, S}),
        ("{a,b", set()),
    ],
)
def test_flags_say_why_a_word_is_not_literal(text: str, flags: set[WordFlag]) -> None:
    """Exactly the expansions that bash performs on the word are flagged; a plain literal has none."""
    got = word(text)
    assert got.flags == flags
    assert bool(got.values) == (not flags)


@pytest.mark.parametrize(
    ("text", "default"),
    [
        ("${d:-.git}", ".git"),
        ("${d-.git}", ".git"),
        ('"${d:=.git}"', ".git"),
        ("${d:+'.git'}", ".git"),
        ('"${d:-".git"}"', ".git"),
        ("${d:-.g\\it}", ".git"),
        ("${d:-}", ""),
        ("${d:-$x}", None),
        ("${d#.git}", None),
        ("$d", None),
    ],
)
def test_a_literal_default_is_kept(text: str, default: str | None) -> None:
    """`${d:-.git}` shows `.git` to whoever looks for protected names."""
    (part,) = word(text).parts
    assert (part.kind, part.text, part.default) == (PartKind.VARIABLE, "d", default)


def test_parts_keep_order_and_quoting() -> None:
    """Pieces come in order, quoting stays known, neighbours of one kind are joined."""
    assert word('a\'b\'"c"*$v"$w"d').parts == (
        Part(PartKind.LITERAL, "a"),
        Part(PartKind.LITERAL, "bc", True),
        Part(PartKind.GLOB, "*"),
        Part(PartKind.VARIABLE, "v"),
        Part(PartKind.VARIABLE, "w", True),
        Part(PartKind.LITERAL, "d"),
    )


def test_spans_point_back_to_the_source() -> None:
    """Every span cuts exactly the written text out of the source, also inside substitutions and behind wide characters."""
    text = "é=1 c1 'p q' $(c2 \"k\") >o <<E | { c3; }\n$(c4 z)\nE\n"
    script = parse(text)
    assert script.unparsed is None
    cut = {command.argv[0].value: text[slice(*command.span)] for command in script.subcommands if command.argv}
    assert cut["c2"] == 'c2 "k"'
    assert cut["c4"] == "c4 z"
    assert cut["c3"] == "c3"
    first = next(command for command in script.subcommands if command.argv and command.argv[0].value == "é=1")
    assert [text[slice(*one.span)] for one in first.argv] == ["é=1", "c1", "'p q'", '$(c2 "k")']
    assert [text[slice(*redirect.span)] for redirect in first.redirects] == [">o", "<<E"]


def test_spans_of_rewritten_text_cover_it() -> None:
    """Where backticks drop backslashes, everything inside points to the whole substitution."""
    text = "c1 `c2 \\`c3\\``"
    spans = [(command.argv[0].value, text[slice(*command.span)]) for command in parse(text).subcommands]
    assert spans == [("c3", "`c2 \\`c3\\``"), ("c2", "`c2 \\`c3\\``"), ("c1", text)]


@pytest.mark.parametrize(
    ("text", "op", "fd", "target", "writes"),
    [
        ("c1 <o", RedirectOp.READ, None, "o", False),
        ("c1 2>o", RedirectOp.WRITE, 2, "o", True),
        ("c1 >>o", RedirectOp.APPEND, None, "o", True),
        ("c1 >|o", RedirectOp.CLOBBER, None, "o", True),
        ("c1 <>o", RedirectOp.READ_WRITE, None, "o", True),
        ("c1 &>o", RedirectOp.BOTH, None, "o", True),
        ("c1 &>>o", RedirectOp.BOTH_APPEND, None, "o", True),
        ("c1 2>&1", RedirectOp.DUP_OUT, 2, "1", False),
        ("c1 >&-", RedirectOp.DUP_OUT, None, "-", False),
        ("c1 >&o", RedirectOp.DUP_OUT, None, "o", True),
        ("c1 >&$v", RedirectOp.DUP_OUT, None, None, True),
        ("c1 3<&4-", RedirectOp.DUP_IN, 3, "4-", False),
        ("c1 {fd}>o", RedirectOp.WRITE, "fd", "o", True),
        ("c1 <<<'a b'", RedirectOp.HERESTRING, None, "a b", False),
        ("c1 <<E\na\nE", RedirectOp.HEREDOC, None, "a\n", False),
        ("c1 <<-'E'\n\ta $v\n\tE", RedirectOp.HEREDOC, None, "a $v\n", False),
        ("c1 <<E\n$v\nE", RedirectOp.HEREDOC, None, None, False),
    ],
)
def test_redirects(text: str, op: RedirectOp, fd: int | str | None, target: str | None, writes: bool) -> None:
    """Operator, descriptor and target of each redirection, and whether it writes."""
    (redirect,) = parse(text).subcommands[-1].redirects
    assert (redirect.op, redirect.fd, redirect.target.value, redirect.writes) == (op, fd, target, writes)


def test_assignments() -> None:
    """Each form of assignment, in order, apart from the argv."""
    (command,) = parse("a=1 b+='x y' c[0]=$v d=(p \"$v\") cmd e=2").subcommands
    shown = [(one.name, one.value and one.value.value, one.append, one.subscript) for one in command.assignments]
    assert shown == [("a", "1", False, None), ("b", "x y", True, None), ("c", None, False, "0"), ("d", None, False, None)]
    assert [one.value for one in command.assignments[3].elements] == ["p", None]
    assert [one.value for one in command.argv] == ["cmd", "e=2"]
