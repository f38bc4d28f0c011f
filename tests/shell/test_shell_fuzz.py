# SPDX-License-Identifier: GPL-3.0-or-later
"""Generated text, held against the real bash, against a second parser, and against harmless rewriting of itself."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_bash

from sandboxd.model import CommandKind, PartKind, Script, Word
from sandboxd.shell.script import parse
from tests.shell import fuzz_shell

CORPUS = Path(__file__).parent.parent / "corpus"
SEED = 20_261_130  # changing it is free; each run prints the seed of what failed


@pytest.mark.needs("bwrap", "userns")
def test_no_generated_text_hides_a_command_from_us() -> None:
    """Of 2,000 generated texts, bash runs no argv and in no directory that we did not list; and we read most of them."""
    parsed = 0
    for seed in range(SEED, SEED + 4):
        tally = fuzz_shell.batch(seed, 500)
        assert tally.failures == [], f"seed {seed}"
        parsed += tally.parsed
    assert parsed > 1_200


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.needs("bwrap", "userns")
def test_endless_fuzz() -> None:
    """The same without end, from the clock's seed; `python -m tests.shell.fuzz_shell` in words."""
    assert fuzz_shell.main([]) == 0


def signature(script: Script) -> object:
    """What a script says, without where it says it."""
    if script.unparsed is not None:
        return None
    return [
        (
            command.kind,
            [(word.values, word.flags, _parts(word)) for word in command.argv],
            [(one.name, one.value and one.value.values, one.append) for one in command.assignments],
            [(one.op, one.fd, one.target.values, one.target.flags) for one in command.redirects],
            command.cwds,
            command.operator,
            command.background,
            [note.code for note in command.notes],
        )
        for command in script.subcommands
    ]


def _parts(word: Word) -> object:
    """The pieces of a dynamic word; the source of a substitution is left out, its commands are compared by themselves."""
    return [(p.kind, "" if p.kind is PartKind.SUBSTITUTION else p.text) for p in word.parts] if word.flags else None


SOURCES = [json.loads(line)["cmd"] for line in (CORPUS / "shell_traps.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("before", "after"),
    [("", " # note"), ("# note\n", ""), ("\n\n", "\n"), ("  \t", "  "), ("\\\n", ""), ("", "\n# it's `odd\n")],
)
def test_comments_blank_lines_and_continuations_change_nothing(before: str, after: str) -> None:
    """Around a whole text, they leave every subcommand, value, flag and note as it was, or the text is refused."""
    for text in SOURCES:
        if "<<" in text or text.endswith(("\\", "\n")) or not text.strip() or text.startswith("#"):
            after_safe = "" if "<<" in text or text.endswith("\\") else after
        else:
            after_safe = after
        changed = signature(parse(before + text + after_safe))
        assert changed is None or changed == signature(parse(text)), repr(before + text + after_safe)


@pytest.mark.parametrize("rewrite", ["quote", "double", "escape", "continue", "empty"])
def test_redundant_quoting_changes_no_word(rewrite: str) -> None:
    """A plain word means the same quoted, escaped, broken over lines or with empty quotes; flags and values stay."""
    source = random.Random(7)
    words = ["src", "a.txt", "--long", "x1", "/usr/lib", "v2.0"]
    for _ in range(200):
        chosen = [source.choice(words) for _ in range(3)]
        index = source.randrange(3)
        old = chosen[index]
        cut = source.randrange(1, len(old))
        new = {
            "quote": f"'{old}'",
            "double": f'{old[:cut]}"{old[cut:]}"',
            "escape": f"{old[:cut]}\\{old[cut:]}",
            "continue": f"{old[:cut]}\\\n{old[cut:]}",
            "empty": f"{old[:cut]}''{old[cut:]}",
        }[rewrite]
        changed = [new if at == index else word for at, word in enumerate(chosen)]
        shapes = ("c1 {}", "cd {} && c2", "for v in {}; do c1 $v; done", "c1 >{}", "if c1 {}; then c2; fi")
        for shape in shapes:
            assert signature(parse(shape.format(" ".join(changed)))) == signature(parse(shape.format(" ".join(chosen))))


BASH = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def names_by_tree_sitter(text: str) -> list[str] | None:
    """The literal command names that tree-sitter-bash sees, sorted; None when it reports an error."""
    tree = BASH.parse(text.encode())
    if tree.root_node.has_error:
        return None
    out: list[str] = []
    stack = [tree.root_node]
    while stack:
        node = stack.pop()
        if node.type == "command_name" and node.text is not None:
            child = node.children[0] if node.children else node
            if child.type in ("word", "command_name") and child.text is not None and b"\\" not in child.text:
                out.append(child.text.decode())
        stack.extend(node.children)
    return sorted(out)


def names_by_us(script: Script) -> set[str]:
    simple = [command for command in script.subcommands if command.kind is CommandKind.SIMPLE and command.argv]
    return {value for command in simple for value in command.argv[0].values}


KNOWN = [json.loads(line)["cmd"] for line in (CORPUS / "shell_second_opinion.jsonl").read_text().splitlines()]


AGENT = [json.loads(line)["cmd"] for line in (CORPUS / "shell_agent.jsonl").read_text().splitlines()]


def test_everyday_commands_are_read() -> None:
    """What coding agents write is parsed, all of it."""
    assert [text for text in AGENT if parse(text).unparsed is not None] == []


def test_a_second_parser_sees_no_command_that_we_do_not() -> None:
    """tree-sitter-bash finds no command name outside ours; where it errs, a row says how, and no row is idle."""
    differing = set()
    for text in [*SOURCES, *AGENT, *KNOWN]:
        script = parse(text)
        theirs = names_by_tree_sitter(text)
        if script.unparsed is None and theirs is not None and not set(theirs) <= names_by_us(script):
            differing.add(text)
    assert differing == set(KNOWN)
