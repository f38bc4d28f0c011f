# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a step answered to a decision: an ALLOW gets its grants, an ASK the first eligible opinion or a DENY."""

from __future__ import annotations

from sandboxd.model import Behavior, Consultant, Decision, Evidence, Grant, Needs, Opinion, TraceEntry
from sandboxd.policy import explain, grants
from sandboxd.policy.broad import set_aside
from sandboxd.policy.case import Answer, Case, Step
from sandboxd.policy.suggestions import suggest, suggest_tool

ALLOW, ASK, DENY = Behavior.ALLOW, Behavior.ASK, Behavior.DENY
# Members as names of this module: Python 3.11 looks an enum's members up in Python.
_CLASSIFIER, _APPROVAL = Consultant.CLASSIFIER, Consultant.APPROVAL
CLASSIFIER_UNAVAILABLE = "CLASSIFIER_UNAVAILABLE"
CLASSIFIER_BREAKER = "classifier.breaker"

_A_PERSON, _A_CLASSIFIER = frozenset((_APPROVAL,)), frozenset((_CLASSIFIER,))
_EITHER = _A_PERSON | _A_CLASSIFIER
_NAMED = 3  # set aside rules that a message names


def settle(case: Case, step: Step, answer: Answer, trace: tuple[TraceEntry, ...]) -> Decision | Needs:
    """`Needs` when the answer is an ASK that somebody may still settle."""
    return _Settling(case, step, answer, trace).run()


class _Settling:
    """From a step's answer to the decision."""

    def __init__(self, case: Case, step: Step, answer: Answer, trace: tuple[TraceEntry, ...]) -> None:
        self.case = case
        self.step = step
        self.answer = answer
        self.trace = trace

    def run(self) -> Decision | Needs:
        answer, case = self.answer, self.case
        if answer.behavior is ALLOW:
            # In bypassPermissions too, but not where the command goes for what the promise would hide or keep it from.
            reading = case.reading is None and (self.step.id == "2e" or (self.step.id == "2a" and not case.reach))
            return self._allow(answer.reason, _grants(case, self.step, reading), reading)
        if answer.behavior is DENY:
            return self._stop(DENY, answer.reason)
        traits = case.traits
        unattended = case.inputs.headless or traits.never_asks
        classifiable = traits.classifies and case.inputs.classifiable and (self.step.classified or answer.classifiable)
        classified = classifiable and not case.inputs.breaker_open
        for opinion in case.inputs.opinions:
            if opinion.who is _CLASSIFIER and classified:
                if opinion.failed:
                    return self._stop(DENY, CLASSIFIER_UNAVAILABLE, opinion=opinion)
                if opinion.verdict is not ASK:
                    return self._answered(opinion, "classifier.denied")
                classified = False
            elif opinion.who is _APPROVAL and not unattended:
                return self._answered(opinion, "approval.expired" if opinion.failed else "approval.denied")
        if not unattended:
            return Needs(_EITHER if classified else _A_PERSON, self._stop(ASK, answer.reason))
        if classified:
            return Needs(_A_CLASSIFIER, self._stop(DENY, CLASSIFIER_UNAVAILABLE))
        if classifiable:
            return self._stop(DENY, CLASSIFIER_BREAKER, why="the classifier denied so much that a person must look at it")
        why = "mode dontAsk never asks" if traits.never_asks else "nobody can be asked here"
        return self._stop(DENY, answer.reason, why=why)

    def _answered(self, opinion: Opinion, denied: str) -> Decision:
        """An ASK that somebody answered."""
        if opinion.failed or opinion.verdict is not ALLOW:
            return self._stop(DENY, denied, opinion=opinion)
        case = self.case
        reading = case.reading is None
        if opinion.who is _APPROVAL:
            opened = grants.by_human(case.inputs, case.verdicts, case.reach, case.safety.touches, reading)
            return self._allow("approval.allowed", opened, reading, opinion)
        return self._allow("classifier.allowed", _grants(case, self.step, reading), reading, opinion)

    def _allow(self, reason: str, opened: tuple[Grant, ...], reading: bool, opinion: Opinion | None = None) -> Decision:
        """`reading`: it runs under the promise."""
        step, answer, case = self.step, self.answer, self.case
        seen = explain.evidence(case.inputs, answer.findings, answer.hits)
        return Decision(
            ALLOW,
            step.id,
            reason,
            explain.allowed(case.inputs, step.id, answer.hits, seen, opinion),
            protected=case.protected,
            promise=reading and case.inputs.tool == "Bash" and not case.inputs.unsandboxed,
            evidence=seen,
            grants=opened,
            trace=self.trace,
        )

    def _stop(self, behavior: Behavior, reason: str, *, opinion: Opinion | None = None, why: str = "") -> Decision:
        """A DENY, or the ASK as it stands."""
        step, answer, case = self.step, self.answer, self.case
        inputs = case.inputs
        suggestions: tuple[str, ...] = ()
        if inputs.tool != "Bash":
            suggestions = suggest_tool(inputs) if step.id == "3" or answer.reason == "scope.network" else ()
        elif step.id == "3":
            suggestions = suggest(inputs.analysis, case.uncovered())
        if step.id == "3" or (suggestions and inputs.tool != "Bash"):
            flip = explain.flip_default(case.edits, suggestions, case.mode)
        else:
            flip = explain.flip(inputs, answer.reason, answer.findings, answer.hits)
        if reason != answer.reason:
            flip = explain.flip(inputs, reason, (), ())
        seen = explain.evidence(inputs, answer.findings, answer.hits)
        parts = [explain.ground(inputs, answer.findings, answer.hits, seen)]
        if answer.reason == "mode.plan":
            parts.append("plan mode only reads")
        elif step.id == "3":
            parts.append("no rule allows it")
        if step.immune and case.safety.touches:
            if grants.opaque(inputs):
                parts.append("even approved, the protected path stays closed, since the line also runs code that cannot be read")
            elif any(found.effect is not None and not grants.opened_by(found, inputs) for found in case.safety.touches):
                parts.append("which path that is cannot be told beforehand, so even approved it stays closed: name it literally")
        if opinion is not None:
            parts.append(explain.said(opinion, "it was not approved"))
        elif reason == CLASSIFIER_UNAVAILABLE:
            parts.append("no classifier has allowed it")
        if why:
            parts.append(why)
        aside = set_aside(inputs) if step.classified and case.traits.classifies else ()
        if aside:
            named = ", ".join(f"`{rule.text}`" for rule in aside[:_NAMED])
            parts.append(f"set aside in mode auto, because too broad: {named}")
        if opinion is not None and opinion.code:
            seen = (*seen, Evidence(opinion.reason, because=opinion.code))
        return Decision(
            behavior,
            step.id,
            reason,
            "; ".join(parts),
            flip,
            immune=step.immune and behavior is ASK,
            protected=case.protected,
            evidence=seen,
            trace=self.trace,
            suggestions=suggestions if behavior is ASK else (),
        )


def _grants(case: Case, step: Step, reading: bool) -> tuple[Grant, ...]:
    if reading:
        opened = grants.for_reading(case.inputs, case.verdicts)
        return (*opened, *grants.hidden_files(case.inputs)) if step.id == "2a" else opened
    if step.id in ("2f", "2g"):
        return grants.WORKSPACE_ONLY
    return grants.by_step(case.inputs, case.verdicts)
