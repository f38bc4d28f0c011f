# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules that can never matter, for `sandboxd rules check`: written twice, or overruled wherever they match."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.model import Behavior, Rule, RuleSet, Source, Strategy
from sandboxd.policy.gittouch import is_protected
from sandboxd.policy.patterns import WORD, ArgvPattern, parse_argv_pattern
from sandboxd.policy.programs import PRIVILEGE
from sandboxd.policy.sources import rank

_EDITS = frozenset(("Edit", "Write", "MultiEdit", "NotebookEdit"))
_WEIGHT = {Behavior.DENY: 0, Behavior.ASK: 1, Behavior.ALLOW: 2}


@dataclass(frozen=True, slots=True)
class Shadow:
    """`rule` never decides anything, because `by` does wherever it matches."""

    rule: Rule
    by: Rule

    def __str__(self) -> str:
        same = self.rule.behavior is self.by.behavior
        verb = "is already said by" if same else "never counts beside"
        return (
            f"{self.rule.origin}: rule `{self.rule.text}` ({self.rule.behavior.value}) {verb} "
            f"`{self.by.text}` ({self.by.behavior.value}) in {self.by.origin}"
        )


def unreachable(rules: RuleSet) -> tuple[str, ...]:
    """What stands above every allow rule, and is allowed by one all the same: each as `file:line: what`."""
    out = []
    for rule in rules.rules:
        if rule.behavior is not Behavior.ALLOW or rule.content is None:
            continue
        if rule.tool == "Bash":
            first = parse_argv_pattern(rule.content, quoted_star=False).first_word
            if first in PRIVILEGE:
                out.append(f"{rule.origin}: rule `{rule.text}` (allow) allows nothing: `{first}` asks a human in every mode")
        elif rule.tool in _EDITS and is_protected(rule.content.removeprefix("~")):
            out.append(f"{rule.origin}: rule `{rule.text}` (allow) allows nothing: the killswitch asks a human about that path")
    return tuple(out)


def shadows(rules: RuleSet) -> tuple[Shadow, ...]:
    """Every rule that another one shadows, each with the first that does. Only what is certain is reported."""
    out = []
    for at, rule in enumerate(rules.rules):
        for number, other in enumerate(rules.rules):
            if number != at and _covers(other, rule) and _wins(other, rule, rules.strategy, number < at):
                out.append(Shadow(rule, other))
                break
    return tuple(out)


def _wins(other: Rule, rule: Rule, strategy: Strategy, first: bool) -> bool:
    """Whether `other`, which matches wherever `rule` does, settles it there. Of two that say the same, the first stays."""
    if strategy is Strategy.SOURCE_ORDER and other.source is not rule.source and other.trusted and rule.trusted:
        final = rule.source is Source.POLICY and rule.behavior is Behavior.DENY
        return rank(other.source) < rank(rule.source) and not final
    if _WEIGHT[other.behavior] != _WEIGHT[rule.behavior]:
        return _WEIGHT[other.behavior] < _WEIGHT[rule.behavior]
    return first or not _covers(rule, other)


def _covers(wide: Rule, narrow: Rule) -> bool:
    """Whether `wide` certainly matches everything that `narrow` does."""
    if wide.tool != narrow.tool:
        return wide.tool.startswith("mcp__") and narrow.tool.startswith(
            wide.tool[:-1] if wide.tool.endswith("*") else f"{wide.tool}__"
        )
    if wide.content is None or wide.content == narrow.content:
        return True
    if narrow.content is None or wide.tool != "Bash":
        return False
    tightens = wide.behavior is not Behavior.ALLOW
    one = parse_argv_pattern(wide.content, quoted_star=tightens)
    other = parse_argv_pattern(narrow.content, quoted_star=narrow.behavior is not Behavior.ALLOW)
    return _contains(one, other)


def _contains(wide: ArgvPattern, narrow: ArgvPattern) -> bool:
    if narrow.exact:
        return wide.matches(narrow.segments[0])
    if len(wide.segments) > 1 or not wide.prefix:
        return False
    head, start = wide.segments[0], narrow.segments[0]
    return (start == head and narrow.prefix and len(narrow.segments) == 1) or start.startswith(head + WORD)
