# SPDX-License-Identifier: GPL-3.0-or-later
"""What an ALLOW opens, for one command. A mode grants nothing by itself.

| answered by | opens |
|---|---|
| 2f, 2g | the workspace |
| 2a, 2b, 2c, a classifier | the workspace; hosts, outside paths and secrets that a rule names |
| a human | likewise, and what the command itself names, protected paths included |

What only reads gets nothing to write when 2e, a person or a classifier allowed it, and under 2a as long as it stays where a
session may read; the mode hides no file of the workspace from it.

A protected path is not opened when the same line also holds code that cannot be read.
"""

from __future__ import annotations

from sandboxd.globs import path_overlaps
from sandboxd.model import Effect, EffectKind, Grant, GrantKind, Inputs, Scope, Sensitivity
from sandboxd.policy.patterns import host_of
from sandboxd.policy.safety import Finding
from sandboxd.policy.scope import may_write
from sandboxd.policy.verdicts import Verdicts

_WORKSPACE = Grant(GrantKind.WORKSPACE_WRITE)
WORKSPACE_ONLY = (_WORKSPACE,)
_READING = frozenset((GrantKind.HOST, GrantKind.READ))


def named_by_rules(inputs: Inputs, verdicts: Verdicts) -> tuple[Grant, ...]:
    """Hosts, outside paths and secrets of this command that an allow rule speaks of."""
    out: dict[Grant, None] = {}
    for hit in verdicts.allows:
        content = hit.compiled.rule.content
        if hit.effect is not None:
            grant = _for_effect(hit.effect, inputs.scope, content is not None)
            if grant is not None:
                out[grant] = None
        elif hit.command is not None and content is not None:
            for effect in hit.command.effects:
                if effect.kind is EffectKind.NETWORK and effect.target is not None and host_of(effect.target) in content:
                    out[Grant(GrantKind.HOST, effect.target)] = None
    return tuple(out)


def _for_effect(effect: Effect, scope: Scope, named: bool) -> Grant | None:
    target = effect.target
    if effect.kind is EffectKind.NETWORK:
        return Grant(GrantKind.HOST, target or "*")
    if target is None or effect.pattern:
        return None
    if effect.kind is EffectKind.READ and named and effect.sensitivity is Sensitivity.SECRET:
        return Grant(GrantKind.READ, target)
    if effect.kind in (EffectKind.WRITE, EffectKind.DELETE) and not may_write(target, scope):
        return Grant(GrantKind.WRITE, target)
    return None


def by_step(inputs: Inputs, verdicts: Verdicts) -> tuple[Grant, ...]:
    """For 2a, 2b, 2c and the classifier, when it does more than read."""
    return (_WORKSPACE, *named_by_rules(inputs, verdicts))


def for_reading(inputs: Inputs, verdicts: Verdicts) -> tuple[Grant, ...]:
    """For what only reads: nothing to write."""
    if not verdicts.allows:
        return ()
    return tuple([grant for grant in named_by_rules(inputs, verdicts) if grant.kind in _READING])


def hidden_files(inputs: Inputs) -> tuple[Grant, ...]:
    """The files of the workspace that the promise hides otherwise."""
    return tuple(Grant(GrantKind.READ, path) for path in inputs.facts.env_files)


def by_human(
    inputs: Inputs, verdicts: Verdicts, reach: tuple[Finding, ...], touches: tuple[Finding, ...], reading: bool
) -> tuple[Grant, ...]:
    """For an approval: what the command names, as it was shown."""
    out: dict[Grant, None] = {}
    if not reading:
        out[_WORKSPACE] = None
    for grant in named_by_rules(inputs, verdicts):
        if not reading or grant.kind in _READING:
            out[grant] = None
    for finding in reach:
        if finding.code == "scope.network" and finding.effect is not None:
            out[Grant(GrantKind.HOST, finding.effect.target or "*")] = None
        elif finding.code == "scope.secret" and finding.path:
            out[Grant(GrantKind.READ, finding.path)] = None
        elif finding.code == "scope.write" and finding.effect is not None and not finding.effect.pattern:
            out[Grant(GrantKind.WRITE, finding.path)] = None
    if touches and not opaque(inputs):
        for finding in touches:
            for path in opened_by(finding, inputs):
                out[Grant(GrantKind.PROTECTED, path)] = None
    if inputs.unsandboxed:
        out[Grant(GrantKind.UNSANDBOXED)] = None
    return tuple(out)


def opened_by(finding: Finding, inputs: Inputs) -> tuple[str, ...]:
    """The protected paths that approving a touch opens: the one it names, or those observed that its glob matches. None for
    a target that is not known: approved or not, it stays closed."""
    if finding.path:
        return (finding.path,)
    effect = finding.effect
    if effect is None or effect.target is None or not effect.pattern:
        return ()
    glob = effect.target
    return tuple(path for path in inputs.facts.protected if path_overlaps(glob, path) or path_overlaps(glob, f"{path}/**"))


def opaque(inputs: Inputs) -> bool:
    """Whether any part of the line is code that cannot be read."""
    analysis = inputs.analysis
    return analysis.unparsed is not None or any(effect.kind is EffectKind.OPAQUE for effect in analysis.effects)
