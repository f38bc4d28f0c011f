# SPDX-License-Identifier: GPL-3.0-or-later
"""One command with everything the steps of the waterfall look at, worked out once (step 1c)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sandboxd.model import AnalyzedCommand, Behavior, EffectKind, Inputs
from sandboxd.policy import scope
from sandboxd.policy.modes import MODES, effective
from sandboxd.policy.safety import SINKS, Finding, guarded, look
from sandboxd.policy.verdicts import Hit, judge_rules

_CHANGES = frozenset((EffectKind.WRITE, EffectKind.DELETE))


class Case:
    """`reading` is None for a command that only reads, else the first thing that does more."""

    __slots__ = ("_named", "_uncovered", "edits", "inputs", "mode", "reach", "reading", "safety", "traits", "verdicts")

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.mode = effective(inputs.mode, inputs.max_mode)
        self.traits = MODES[self.mode]
        self.verdicts = judge_rules(inputs)
        self.safety = look(inputs)
        self.reach = scope.reaches(inputs, self.verdicts)
        self.reading = scope.more_than_reads(inputs)
        self.edits = self.reading is not None and scope.only_edits(inputs)
        self._named: frozenset[int] | None = None
        self._uncovered: tuple[AnalyzedCommand, ...] | None = None

    @property
    def boxed(self) -> bool:
        """Whether `auto_allow_if_sandboxed` applies: it is on, the sandbox is complete, and so is what it guards."""
        inputs = self.inputs
        return inputs.auto_allow_if_sandboxed and guarded(inputs) and not inputs.unsandboxed

    @property
    def protected(self) -> bool:
        """Whether there is evidence of a protected touch or a certain catastrophe, whichever step answers."""
        safety = self.safety
        return bool(safety.touches or safety.settings or safety.catastrophes)

    def uncovered(self) -> tuple[AnalyzedCommand, ...]:
        """The subcommands that neither an allow rule nor their own harmlessness covers."""
        if self._uncovered is None:
            self._uncovered = tuple([command for command in self.inputs.analysis.commands if not self._covered(command)])
        return self._uncovered

    def _covered(self, command: AnalyzedCommand) -> bool:
        """Whether rules cover everything a subcommand does. A rule for its words covers what the program does, not the
        files its redirects write, nor secrets that no rule names."""
        if self.reach and any(found.command is command and found.code == "scope.secret" for found in self.reach):
            return False
        if id(command) in self.verdicts.wholly:
            return True
        by_words = id(command) in self.verdicts.covered
        allowed = self._allowed_effects()
        if not by_words and scope.suspicion(command, self.inputs.facts) is not None:
            return False
        for effect in command.effects:
            if effect.kind in scope.READS or (effect.kind in _CHANGES and effect.target in SINKS):
                continue
            if id(effect) in allowed:
                continue
            if self.traits.edits and scope.is_edit(effect, self.inputs.scope):
                continue
            if not by_words or (effect.because.startswith("redirect.") and not scope.in_tmp(effect, self.inputs.scope)):
                return False
        # What no rule speaks of must not leave the session's places.
        return by_words or not self.reach or all(found.command is not command for found in self.reach)

    def _allowed_effects(self) -> frozenset[int]:
        if self._named is None:
            self._named = frozenset([id(hit.effect) for hit in self.verdicts.allows if hit.effect is not None])
        return self._named


class Answer(NamedTuple):
    """What a step says. `findings` or `hits` are its grounds."""

    behavior: Behavior
    reason: str
    findings: tuple[Finding, ...] = ()
    hits: tuple[Hit, ...] = ()
    classifiable: bool = False  # an immune ASK that the classifier may settle all the same


@dataclass(frozen=True, slots=True)
class Step:
    """`immune`: its ASK is for humans only; `classified`: in auto mode the classifier may settle its ASK."""

    id: str
    name: str
    asks: str
    answers: str
    judge: Callable[[Case], Answer | None]
    immune: bool = False
    classified: bool = False
