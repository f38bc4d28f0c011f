# SPDX-License-Identifier: GPL-3.0-or-later
"""The waterfall: one tuple of steps, read top to bottom; the first step that answers decides.

Three things stand around it, and only these: an ASK never hides a DENY further down (nobody is asked in vain); what a
hook tightened counts whatever step answered; and an ASK is settled by the first eligible opinion, or turned into a DENY
where nobody can be asked. Everything is a function of `Inputs`.

To add a step: a function below, a row in `STEPS` where it belongs, its trait in `Step`, and write what `document()` gives
to docs/waterfall.md.
"""

from __future__ import annotations

from functools import lru_cache

from sandboxd.memory import Memory, size_of
from sandboxd.model import Behavior, Consultant, Decision, EffectKind, Inputs, Needs, Opinion, TraceEntry
from sandboxd.policy import explain
from sandboxd.policy.case import Answer, Case, Step
from sandboxd.policy.modes import MODES
from sandboxd.policy.safety import Finding
from sandboxd.policy.settle import CLASSIFIER_UNAVAILABLE, settle

ALLOW, ASK, DENY = Behavior.ALLOW, Behavior.ASK, Behavior.DENY


def _tool_deny(case: Case) -> Answer | None:
    hits = case.verdicts.tool_denies
    return Answer(DENY, "rule.tool.deny", hits=hits) if hits else None


def _tool_ask(case: Case) -> Answer | None:
    hits = case.verdicts.tool_asks
    return Answer(ASK, "rule.tool.ask", hits=hits) if hits and not case.boxed else None


def _check(case: Case) -> Answer | None:
    """The facts were collected when the case was made; this row is their place in the order."""
    return None


def _content_deny(case: Case) -> Answer | None:
    if case.safety.catastrophes:
        return Answer(DENY, case.safety.catastrophes[0].code, case.safety.catastrophes)
    hits = case.verdicts.denies
    return Answer(DENY, "rule.deny", hits=hits) if hits else None


def _interaction(case: Case) -> Answer | None:
    found = case.safety.interactions
    return Answer(ASK, found[0].code, found) if found else None


def _content_ask(case: Case) -> Answer | None:
    hits = case.verdicts.asks
    if not hits:
        return None
    return Answer(ASK, "rule.may_match" if all(hit.maybe for hit in hits) else "rule.ask", hits=hits)


def _safety(case: Case) -> Answer | None:
    if case.safety.touches:
        return Answer(ASK, case.safety.touches[0].code, case.safety.touches)
    if case.safety.settings:
        return Answer(ASK, "settings_read", case.safety.settings, classifiable=True)
    return None


def _plan(case: Case) -> Answer | None:
    return Answer(DENY, "mode.plan", (case.reading,)) if case.traits.reads_only and case.reading is not None else None


def _bypass(case: Case) -> Answer | None:
    return Answer(ALLOW, "mode.bypass") if case.traits.bypasses else None


def _rule_allow(case: Case) -> Answer | None:
    verdicts = case.verdicts
    hits = (*verdicts.allows, *verdicts.tool_allows)
    if verdicts.exact:
        return Answer(ALLOW, "rule.allow.exact", hits=hits)
    if not hits or case.inputs.analysis.unparsed is not None:
        return None
    if case.inputs.tool == "Bash" and not verdicts.covered and case.reading is None:
        return None
    if case.uncovered():
        return None
    return Answer(ALLOW, "rule.allow", hits=hits)


def _hook_allow(case: Case) -> Answer | None:
    for opinion in case.inputs.opinions:
        if opinion.who is Consultant.HOOK and opinion.verdict is ALLOW and not opinion.failed:
            return Answer(ALLOW, "hook.allow")
    return None


def _scope(case: Case) -> Answer | None:
    return Answer(ASK, case.reach[0].code, case.reach) if case.reach else None


def _read_only(case: Case) -> Answer | None:
    return Answer(ALLOW, "read_only") if case.reading is None else None


def _accept_edits(case: Case) -> Answer | None:
    return Answer(ALLOW, "mode.accept_edits") if case.traits.edits and case.edits else None


def _sandbox_auto(case: Case) -> Answer | None:
    analysis = case.inputs.analysis
    if not case.boxed or analysis.unparsed is not None:
        return None
    if any(effect.kind is EffectKind.NETWORK for effect in analysis.effects):
        return None
    return Answer(ALLOW, "sandbox.auto")


def _default(case: Case) -> Answer:
    return Answer(ASK, "default", () if case.reading is None else (case.reading,))


STEPS: tuple[Step, ...] = (
    Step("1a", "rule.tool.deny", "is the whole tool denied by any source?", "DENY, final", _tool_deny),
    Step(
        "1b",
        "rule.tool.ask",
        "is the whole tool set to ask? (skipped when it runs sandboxed, `auto_allow_if_sandboxed` is on and enforcement is FULL)",
        "ASK",
        _tool_ask,
        classified=True,
    ),
    Step(
        "1c",
        "tool.check",
        "parse, split, match every subcommand; collect effects, scope, sensitivity",
        "facts for the steps below",
        _check,
    ),
    Step(
        "1d",
        "tool.deny",
        "does a content deny rule match any subcommand, or is the command certainly catastrophic?",
        "DENY, final",
        _content_deny,
    ),
    Step(
        "1e",
        "tool.interaction",
        "does it need a human by nature: run unsandboxed, gain privilege, perhaps a catastrophe?",
        "ASK, bypass-immune",
        _interaction,
        immune=True,
    ),
    Step(
        "1f",
        "rule.content.ask",
        "does a content ask rule match any subcommand?",
        "ASK, bypass-immune",
        _content_ask,
        immune=True,
    ),
    Step(
        "1g",
        "safety",
        "is a protected path touched, on evidence, or an agent's permission settings read?",
        "ASK, bypass-immune",
        _safety,
        immune=True,
    ),
    Step("2p", "mode.plan", "is the mode plan, and the command not read-only?", "DENY", _plan),
    Step("2a", "mode.bypass", "is the mode bypassPermissions?", "ALLOW", _bypass),
    Step("2b", "rule.allow", "is the whole tool allowed, or every subcommand by content allow rules?", "ALLOW", _rule_allow),
    Step("2c", "hook.allow", "did a hook allow it?", "ALLOW", _hook_allow),
    Step(
        "2d",
        "scope",
        "does it reach out: writes, reads or `cd` outside the session's places, secrets, hosts that no rule allows?",
        "ASK",
        _scope,
        classified=True,
    ),
    Step("2e", "read_only", "is every effect a read?", "ALLOW, under the read-only promise", _read_only),
    Step(
        "2f",
        "mode.acceptEdits",
        "is the mode acceptEdits (or auto), and every effect a plain edit in the workspace?",
        "ALLOW",
        _accept_edits,
    ),
    Step(
        "2g",
        "sandbox.auto",
        "is `auto_allow_if_sandboxed` on, enforcement FULL, and neither network nor a grant needed?",
        "ALLOW",
        _sandbox_auto,
    ),
    Step("3", "default", "", "ASK", _default, classified=True),
)
_HOOK = next(step for step in STEPS if step.id == "2c")
_LAST = STEPS[-1]
# What the steps say when none but the last answers, which always says the same.
_SILENT = (*(TraceEntry(step.id, step.name, None) for step in STEPS[:-1]), TraceEntry(_LAST.id, _LAST.name, ASK, "default"))
# Without 1c, which never answers, and the last, which is asked when no other did.
_JUDGES = tuple((at, step.judge) for at, step in enumerate(STEPS[:-1]) if step.judge is not _check)


# Analysis, by identity -> the last question about it and its answer. A command is judged again when its lane admits it and
# when an agent repeats it; the entry holds the analysis, so that its identity stays taken.
_ANSWERED: Memory[tuple[Inputs, Decision | Needs]] = Memory(4 << 20)


def evaluate(inputs: Inputs) -> Decision | Needs:
    """What the steps say. `Needs` when the answer is an ASK that somebody may still settle. Equal questions have one answer,
    so the last one is remembered."""
    key = id(inputs.analysis)
    last = _ANSWERED.get(key)
    if last is not None and last[0] == inputs:
        return last[1]
    outcome = walk(inputs)
    analysis = inputs.analysis
    words = 0 if analysis.unparsed is None else len(analysis.unparsed.words)
    _ANSWERED.keep(key, (inputs, outcome), size_of(analysis.text, len(analysis.commands), words))
    return outcome


def walk(inputs: Inputs) -> Decision | Needs:
    """`evaluate` without its memory."""
    case = Case(inputs)
    trace = list(_SILENT)
    step: Step = _LAST
    answer: Answer | None = None
    for at, judge in _JUDGES:
        said = judge(case)
        if said is None:
            continue
        trace[at] = _entry(at, said.behavior, said.reason)
        if answer is None or (answer.behavior is ASK and said.behavior is DENY):
            step, answer = STEPS[at], said
    if answer is None:
        answer = _default(case)
    if inputs.opinions:
        step, answer = _hooks(inputs.opinions, step, answer)
    return settle(case, step, answer, tuple(trace))


@lru_cache(maxsize=1024)
def _entry(at: int, behavior: Behavior, reason: str) -> TraceEntry:
    return TraceEntry(STEPS[at].id, STEPS[at].name, behavior, reason)


def _hooks(opinions: tuple[Opinion, ...], step: Step, answer: Answer) -> tuple[Step, Answer]:
    """What hooks tighten: a deny counts over everything, an ask over an ALLOW."""
    for opinion in opinions:
        if opinion.who is not Consultant.HOOK or opinion.failed or answer.behavior is DENY:
            continue
        if opinion.verdict is DENY:
            return _HOOK, Answer(DENY, "hook.deny", (Finding("hook.deny", explain.said(opinion, "a hook denied it")),))
        if opinion.verdict is ASK and answer.behavior is ALLOW:
            step, answer = _HOOK, Answer(ASK, "hook.ask", (Finding("hook.ask", explain.said(opinion, "a hook wants it asked")),))
    return step, answer


def document() -> str:
    """docs/waterfall.md, made from STEPS."""
    lines = [
        "<!-- SPDX-License-Identifier: GPL-3.0-or-later -->",
        "<!-- Made by `document()` in sandboxd/policy/waterfall.py from STEPS; a test keeps it current. -->",
        "# The waterfall",
        "",
        "Every command walks these steps from top to bottom. The first step that answers decides; the trace keeps what",
        "each of them said.",
        "",
        "| step | name | asks | answer | who may settle its ASK |",
        "|---|---|---|---|---|",
    ]
    for step in STEPS:
        settles = "–"
        if step.answers.startswith("ASK"):
            settles = "a human" if step.immune else "a human; in auto mode the classifier" if step.classified else "a human"
        if step.id == "1g":
            settles = "a human; for `settings_read` in auto mode the classifier too"
        lines.append(f"| {step.id} | {step.name} | {step.asks or '–'} | {step.answers} | {settles} |")
    lines += [
        "",
        "Around the steps:",
        "",
        "- An ASK never hides a DENY further down: nobody is asked about what cannot be allowed.",
        "- What a hook denies is denied, and what it wants asked is asked, whichever step answered.",
        "- dontAsk and headless sessions turn an ASK into a DENY; in auto mode the classifier is heard first, and a classifier",
        f"  that is missing or fails never allows: DENY with `{CLASSIFIER_UNAVAILABLE}`.",
        "- In bypassPermissions, too, what only reads, and only where a session may, runs under the read-only promise.",
        "- Text that could not be parsed is never read-only, never an edit, and matched by an allow rule only byte by byte.",
        "",
        "## Modes",
        "",
        "| mode | what it does |",
        "|---|---|",
        *(f"| {traits.mode.value} | {traits.about} |" for traits in MODES.values()),
        "",
    ]
    return "\n".join(lines)
