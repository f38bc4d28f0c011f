# SPDX-License-Identifier: GPL-3.0-or-later
"""Bounds: nothing raises, nothing takes long, the grammar is cached by shape and never trusted blindly."""

from __future__ import annotations

import time
from types import SimpleNamespace

import bashlex
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.shell import grammar
from sandboxd.shell.script import parse

SECOND = 1.0  # what a text of 64 kB may take; a shared machine is given three tries
K = 64 * 1024

LARGE = {
    "open parentheses": "(" * 10_000,
    "closed parentheses": "(" * 10_000 + ")" * 10_000,
    "arguments": "a" + " b" * 32_000,
    "odd expansion": "echo a'${'",
    "double quotes": 'c1 "' + "x" * 60_000 + '"',
    "single quotes": "c1 '" + "x" * 60_000 + "'",
    "commands": "a;" * 2_000,
    "too many commands": "a;" * 30_000,
    "pipes": "a|" * 1_990 + "b",
    "lists": "a&&" * 1_990 + "b",
    "brackets": "c1 " + "[" * 60_000,
    "braces": "c1 " + "{a,b}" * 12_000,
    "nested braces": "c1 " + "{a," * 15_000 + "}" * 15_000,
    "commas": "c1 {" + "," * 60_000 + "}",
    "backticks": "`" * 60_000,
    "backslashes": "c1 " + "\\" * 60_000,
    "continuations": "c1 " + "a \\\n" * 16_000,
    "here-documents": "c1 " + "<<E " * 8_000 + "\n" + "E\n" * 8_000,
    "here-document": "c1 <<E\n" + "\\\n" * 30_000 + "E\n",
    "assignments": "A=1 " * 16_000,
    "followed values": "".join(f"v{i}=$v{i - 1}x;" for i in range(1_990)),
    "variables": "v=x; c1 " + "$v" * 30_000,
    "tildes": "c1 a=" + ":~" * 30_000,
    "clauses": "case a in " + "a) b;; " * 900 + "esac",
    "redirects": "c1 " + ">b " * 20_000,
    "arithmetic": "$((" * 20_000,
    "failing arithmetic": "c1 " + "$((a) " * 10_000,
    "tests": "[[ " + "a == b && " * 6_000 + "a ]]",
    "array": "a=(" + "x " * 30_000 + ")",
    "loops": "for i in a b; do " * 18 + "c1 $i;" * 1_900 + " done;" * 18,
    "values": "for x in a b c d; do for y in a b c d; do " + "c1 $x$y;" * 1_900 + "done; done",
    "functions": "f() { a; };" * 600 + "f;" * 700,
    "newlines": "\n" * 60_000,
    "comments": "#a\n" * 20_000,
    "bangs": "! " * 30_000,
}


@pytest.mark.parametrize("name", LARGE)
def test_any_text_up_to_64_kb_answers_within_a_second_of_work(name: str) -> None:
    """No construct makes the time grow faster than the text."""
    text = LARGE[name][:K]
    best = SECOND * 100
    for _ in range(3):
        grammar.forget()
        start = time.thread_time()
        parse(text)
        best = min(best, time.thread_time() - start)
        if best < SECOND:
            break
    assert best < SECOND


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * (K + 1), "unparsed.size"),
        ("é" * (K // 2 + 1), "unparsed.size"),
        ("c1 \0", "unparsed.control_character"),
        ("c1\r", "unparsed.control_character"),
        ("c1 \x7f", "unparsed.control_character"),
        ("c1 \x85", "unparsed.control_character"),
        ("c1 \ud800", "unparsed.encoding"),
        ("c1 $'\\xff'", "unparsed.encoding"),
        ("a;" * 2_001, "unparsed.commands"),
        ("$(" * 21 + ")" * 21, "unparsed.nesting"),
        ("{ " * 21, "unparsed.nesting"),
    ],
)
def test_what_exceeds_a_bound_is_refused_with_the_reason(text: str, reason: str) -> None:
    """Larger, deeper or undecodable text is unparsed, and says which bound."""
    script = parse(text)
    assert script.unparsed is not None
    assert script.unparsed.reason == reason


def test_the_bounds_themselves_are_allowed() -> None:
    """2,000 commands and 19 nested substitutions are still read."""
    assert len(parse("a;" * 2_000).subcommands) == 2_000
    assert parse("c1 " + "$(c1 " * 18 + ")" * 18).unparsed is None


PIECES = st.sampled_from(
    [
        *"'\"`$(){}[]<>|&;\\#!~*?=-+@:/%^, \n\t",
        *("$(", "${", "$((", "((", "))", "<<E", "\nE\n", "<(", "[[", "]]", "if ", "then ", "fi", "case ", "in ", "esac", ";;"),
        *("do ", "done", "for ", "while ", "{ ", "}", "a", "b", "x=", "é", "2>", "&>", "\\\n", "$'", "f()"),
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
def test_no_text_raises(text: str) -> None:
    """Whatever the text, there is an answer, and never because of a defect."""
    script = parse(text)
    assert script.text == text
    assert script.unparsed is None or script.unparsed.reason != "unparsed.internal"


def test_texts_that_differ_in_words_share_one_shape() -> None:
    """The grammar runs once for a shape; the cache is bounded and holds tuples only."""
    grammar.forget()
    for number in range(50):
        parse(f"cd dir{number} && grep -r 'x {number}' . | head -{number} >out{number}")
    info = grammar.cache_info()
    assert info.misses == 1
    assert info.hits == 49
    assert info.maxsize is not None
    assert isinstance(grammar.tree("w0 && w1"), tuple)
    hash(grammar.tree("w0 && w1"))


def test_the_answer_does_not_depend_on_the_cache() -> None:
    """The same text gives the same script, cold or warm."""
    text = "if a; then for v in x y; do b $v; done; fi | c && { d; } >o"
    grammar.forget()
    cold = parse(text)
    assert parse(text) == cold


def test_a_failing_grammar_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the grammar raises becomes `unparsed.grammar`."""

    def explode(shape: str) -> object:
        raise RecursionError(shape)

    monkeypatch.setattr(grammar, "parser", explode)
    grammar.forget()
    script = parse("c1 | c2")
    assert script.unparsed is not None
    assert script.unparsed.reason == "unparsed.grammar"
    grammar.forget()


@pytest.mark.parametrize("damage", ["drop", "double", "swap", "rename"])
def test_a_tree_that_lost_a_word_is_not_trusted(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A placeholder that is missing, doubled, out of order or changed makes the text unparsed."""
    real = bashlex.parse

    def damaged(shape: str) -> list[SimpleNamespace]:
        (tree,) = real(shape)
        commands = tree.parts
        if damage == "drop":
            del commands[2]
            del commands[1]
        elif damage == "double":
            commands[2] = commands[0]
        elif damage == "swap":
            commands[0], commands[2] = commands[2], commands[0]
        else:
            commands[0].parts[0].word = "rm"
        return [tree]

    monkeypatch.setattr(grammar, "parser", damaged)
    grammar.forget()
    script = parse("c1 | c2 | c3")
    assert script.unparsed is not None
    assert script.unparsed.reason == "unparsed.completeness"
    grammar.forget()
