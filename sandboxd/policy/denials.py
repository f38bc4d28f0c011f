# SPDX-License-Identifier: GPL-3.0-or-later
"""Which deny rules the kernel has to keep as well, because code that nobody can read may break them."""

from __future__ import annotations

from sandboxd.model import Behavior, EffectKind, Inputs, Source, Strategy
from sandboxd.policy.rules import Compiled, index_rules
from sandboxd.policy.sources import rank
from sandboxd.policy.verdicts import place_of


def denied_reads(inputs: Inputs) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The `Read(path)` rules that deny, each as written and with the absolute globs that it means.

    Where sources are ordered a rule counts only if none above it could allow what it denies.
    """
    compiled = index_rules(inputs.rules, place_of(inputs)).effects.get(EffectKind.READ, ())
    return tuple((one.rule.text, one.globs) for one in compiled if one.globs and _final(one, compiled, inputs.rules.strategy))


def _final(one: Compiled, among: tuple[Compiled, ...], strategy: Strategy) -> bool:
    if one.rule.behavior is not Behavior.DENY:
        return False
    if strategy is Strategy.DENY_OVERRIDES or one.rule.source is Source.POLICY or not one.rule.trusted:
        return True
    above = rank(one.rule.source)
    return not any(other.rule.behavior is not Behavior.DENY and rank(other.rule.source) < above for other in among)
