# SPDX-License-Identifier: GPL-3.0-or-later
"""What the policy tests share: corpus rows, hand-made analyses, and one question to the waterfall in a line."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from sandboxd.analyze import analyze
from sandboxd.model import (
    Analysis,
    AnalysisContext,
    AnalyzedCommand,
    Behavior,
    Decision,
    Effect,
    EffectKind,
    Inputs,
    Mode,
    Needs,
    Part,
    PartKind,
    Rule,
    RuleSet,
    Scope,
    Source,
    Span,
    Strategy,
    Subcommand,
    Unparsed,
    Word,
)
from sandboxd.policy.rules import parse_rule
from sandboxd.policy.waterfall import evaluate

HOME = "/home/ada"
WORKSPACE = "/home/ada/proj"
CORPUS = Path(__file__).parent.parent / "corpus"
SCOPE = Scope(WORKSPACE, HOME)


def rows(name: str, table: str) -> list[dict[str, Any]]:
    """The rows of one table of a corpus file."""
    found = tomllib.loads((CORPUS / f"{name}.toml").read_text())[table]
    assert found
    return list(found)


def rule(text: str, behavior: str = "allow", source: Source = Source.USER, origin: str = "settings.toml:1") -> Rule:
    return parse_rule(text, Behavior(behavior), source, origin)


def ruleset(*texts: str, strategy: Strategy = Strategy.DENY_OVERRIDES) -> RuleSet:
    """Rules written as `allow Bash(ls)`, `deny@policySettings Read(x)`."""
    out = []
    for number, text in enumerate(texts, 1):
        head, _, body = text.partition(" ")
        behavior, _, source = head.partition("@")
        out.append(rule(body, behavior, Source(source or "userSettings"), f"settings.toml:{number}"))
    return RuleSet(tuple(out), strategy)


def effect(kind: EffectKind, target: str | None = None, **more: Any) -> Effect:
    return Effect(kind, more.pop("because", "row"), Span(0, 1), target, **more)


def _word(text: str) -> Word:
    return Word(Span(0, 1), (Part(PartKind.LITERAL, text),), (text,))


def command(words: str, *effects: Effect) -> AnalyzedCommand:
    """A subcommand by hand; its words are split at blanks, `?` is a word that is not known."""
    argv = tuple(None if word == "?" else word for word in words.split())
    subcommand = Subcommand(tuple(_word(word or "") for word in argv), Span(0, 1))
    return AnalyzedCommand(subcommand, argv, effects, harmless=argv, bare=argv)


def analysis(*commands: AnalyzedCommand, unparsed: bool = False, read_only: bool | None = None, text: str = "x") -> Analysis:
    kinds = {one.kind for each in commands for one in each.effects}
    if read_only is None:
        read_only = kinds <= {EffectKind.READ, EffectKind.EXEC, EffectKind.ENV} and not unparsed
    broken = (
        Unparsed("unparsed.grammar", Span(0, 1), tuple(word for each in commands for word in each.argv if word))
        if unparsed
        else None
    )
    return Analysis(text, WORKSPACE, commands, unparsed=broken, read_only=read_only)


def ask(text: str | Analysis, *texts: str, rules: RuleSet | None = None, scope: Scope = SCOPE, **more: Any) -> Decision | Needs:
    """The waterfall's answer for a command line (or an analysis) under rules written as for `ruleset`."""
    if isinstance(text, str):
        text = analyze(text, AnalysisContext(more.pop("cwd", WORKSPACE), HOME, WORKSPACE))
    return evaluate(Inputs(text, ruleset(*texts) if rules is None else rules, scope, **more))


def decide(text: str | Analysis, *texts: str, **more: Any) -> Decision:
    """Like `ask`; an ASK as it stands while somebody could still settle it."""
    outcome = ask(text, *texts, **more)
    return outcome.pending if isinstance(outcome, Needs) else outcome


def plain(decision: Decision) -> Decision:
    """A decision without its trace, for comparisons."""
    return dataclasses.replace(decision, trace=())


MODES = tuple(Mode)
