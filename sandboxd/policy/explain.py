# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a decision is what it is, in words: the sentence, the evidence, and the smallest change that would turn it.

To add a reason code: a line in `_FLIPS` when something other than an approval turns it.
"""

from __future__ import annotations

from sandboxd.model import (
    Analysis,
    AnalyzedCommand,
    Behavior,
    Consultant,
    Decision,
    Effect,
    EffectKind,
    Evidence,
    Inputs,
    Mode,
    Opinion,
)
from sandboxd.policy.patterns import host_of
from sandboxd.policy.safety import Finding
from sandboxd.policy.verdicts import Hit

_SHOWN = 80  # characters of a subcommand in a message


def name(analysis: Analysis, command: AnalyzedCommand | None) -> str:
    """A subcommand as it is shown to a person: its words, or its source text."""
    if command is None:
        text = analysis.text.strip()
    elif command.argv and None not in command.argv:
        text = " ".join(command.argv)  # type: ignore[arg-type]  # no None among them, as just seen
    elif command.via:
        text = " ".join(["…" if word is None else word for word in command.argv])
    else:
        text = analysis.text[command.subcommand.span.start : command.subcommand.span.end]
    words = text.split(None, _SHOWN)
    if len(words) > _SHOWN:  # the last is all the rest: some are whole programs, of which the ends are shown
        return f"{' '.join(words[:_SHOWN])[: _SHOWN - 20]} … {' '.join(text.rsplit(None, 17))[-17:]}"
    text = " ".join(words)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]} … {text[-17:]}"


_DOES = {
    EffectKind.READ: "reads",
    EffectKind.WRITE: "writes",
    EffectKind.DELETE: "deletes",
    EffectKind.EXEC: "runs",
    EffectKind.NETWORK: "sends data to",
    EffectKind.PROCESS: "acts on other processes",
    EffectKind.SYSTEM: "changes the system",
    EffectKind.ENV: "changes the shell",
    EffectKind.OPAQUE: "runs what cannot be judged beforehand",
}


_TARGETED = frozenset((EffectKind.WRITE, EffectKind.DELETE, EffectKind.NETWORK, EffectKind.READ))


def describe(effect: Effect) -> str:
    """What an effect does, as the predicate of a sentence."""
    verb = _DOES[effect.kind]
    if effect.kind in _TARGETED:
        return f"{verb} `{effect.target}`" if effect.target is not None else f"{verb} something that is not known"
    return f"{verb} ({effect.code or effect.because})"


def evidence(inputs: Inputs, findings: tuple[Finding, ...], hits: tuple[Hit, ...]) -> tuple[Evidence, ...]:
    """Everything a step looked at, with where it stands."""
    if not (findings or hits):
        return ()
    analysis = inputs.analysis
    out = []
    for hit in hits:
        rule = hit.compiled.rule
        span = hit.effect.span if hit.effect is not None else hit.command.subcommand.span if hit.command is not None else None
        out.append(
            Evidence(
                rule.reason or f"rule `{rule.text}`",
                span,
                name(analysis, hit.command),
                rule.text,
                rule.source.value,
                rule.origin,
                "" if hit.effect is None else hit.effect.because,
            )
        )
    for found in findings:
        effect, command = found.effect, found.command
        span = effect.span if effect is not None else command.subcommand.span if command is not None else None
        because = "" if effect is None else effect.because
        text = found.message or (found.code if effect is None else describe(effect))
        out.append(Evidence(text, span, name(analysis, command), because=because))
    return tuple(out)


def ground(inputs: Inputs, findings: tuple[Finding, ...], hits: tuple[Hit, ...], seen: tuple[Evidence, ...]) -> str:
    """The first ground as a sentence: the rule and where it stands, or what was found; and how many more there are. `seen`
    is their `evidence`."""
    more = len(seen) - 1
    about = seen[0].subcommand if seen else name(inputs.analysis, None)
    others = f" (and {more} more)" if more > 0 else ""
    if hits:
        hit = hits[0]
        rule = hit.compiled.rule
        verb = "may speak of" if hit.maybe else {"deny": "denies", "ask": "asks for", "allow": "allows"}[rule.behavior.value]
        reason = f": {rule.reason}" if rule.reason else ""
        where = f"{rule.source.value}, {rule.origin}"
        return f"rule `{rule.text}` ({where}) {verb} `{about}`{reason}{others}"
    if findings:
        found = findings[0]
        message = found.message or (f"it {seen[0].text}" if found.effect is not None else found.code)
        return f"`{about}`: {message}{others}"
    return f"`{about}`"


def said(opinion: Opinion, otherwise: str) -> str:
    """Who said what, of an opinion."""
    who = {Consultant.HOOK: "hook", Consultant.CLASSIFIER: "classifier", Consultant.APPROVAL: "approver"}[opinion.who]
    named = f"{who} `{opinion.name}`" if opinion.name else who
    return f"{named}: {opinion.reason}" if opinion.reason else f"{otherwise} ({named})"


_ALLOWED = {
    "2a": "mode bypassPermissions allows it",
    "2c": "a hook allowed it",
    "2e": "it only reads; it runs where nothing can be written",
    "2f": "it only edits files of the workspace",
    "2g": "the sandbox confines it fully, and it needs nothing outside",
}


def allowed(inputs: Inputs, step: str, hits: tuple[Hit, ...], seen: tuple[Evidence, ...], opinion: Opinion | None) -> str:
    if opinion is not None:
        return f"allowed: {said(opinion, 'it was approved')}"
    if step == "2b":
        return ground(inputs, (), hits, seen) if hits else "every part of it is allowed"
    if step == "2e" and inputs.tool != "Bash":
        return "it only reads"
    return _ALLOWED[step]


_APPROVE = "approve it in a session where someone can answer"
_FLIPS = {
    "catastrophe.tree": "no setting allows it; name what is to go, below that directory",
    "catastrophe.device": "no setting allows it; write to a file instead",
    "catastrophe.kernel": "no setting allows it; a person must change kernel settings outside sandboxd",
    "catastrophe.program": "no setting allows it; a person must run it outside sandboxd",
    "catastrophe.fork_bomb": "no setting allows it; bound the number of processes it starts",
    "interaction.unsandboxed": f"run it sandboxed, or {_APPROVE}",
    "interaction.privilege": f"run it without more privilege, or {_APPROVE}",
    "interaction.ambiguous": f"write it plainly and absolute, or {_APPROVE}",
    "interaction.possibly_catastrophic": f"name the directory literally, or {_APPROVE}",
    "interaction.unread": f"send it in shorter pieces, or {_APPROVE}",
    "rule.may_match": f"name the program literally, or {_APPROVE}",
    "protected.unknown": f"name the path literally, or {_APPROVE}",
    "settings_read": f"leave the settings file out, or {_APPROVE}",
    "mode.plan": "leave plan mode, or use a command that only reads",
    "scope.read_unresolved": f"name the path literally, or {_APPROVE}",
    "scope.write_unresolved": f"name the path literally, or {_APPROVE}",
    "hook.deny": "change what the hook objects to",
    "CLASSIFIER_UNAVAILABLE": "retry when the classifier answers again, or switch to a mode in which a person is asked",
    "classifier.breaker": "stop and tell the person you work for; it goes on when someone has answered a question here",
    "classifier.denied": "do it another way, or ask the person you work for",
    "approval.denied": "do it another way; a person said no",
    "approval.expired": "ask again when someone can answer",
}


def flip(inputs: Inputs, reason: str, findings: tuple[Finding, ...], hits: tuple[Hit, ...]) -> str:
    """The smallest change that would turn a DENY or an ASK, as an instruction."""
    if reason in _FLIPS:
        return _FLIPS[reason]
    if hits:
        rule = hits[0].compiled.rule
        remove = f"remove or narrow the rule `{rule.text}` in {rule.origin}"
        return remove if rule.behavior is Behavior.DENY else f"{_APPROVE}, or {remove}"
    found = findings[0] if findings else None
    if found is None:
        return _APPROVE
    if reason == "scope.network":
        effect = found.effect
        if effect is None or effect.target is None:
            return f"name the host literally, or {_APPROVE}"
        return f"{_APPROVE}, or add the rule `WebFetch(domain:{host_of(effect.target)})`"
    if reason in ("scope.read", "scope.secret", "scope.write"):
        path = found.path or (found.effect.target if found.effect is not None else None)
        tool = "Edit" if reason == "scope.write" else "Read"
        return f"{_APPROVE}, or add the rule `{tool}(/{path})`" if path else _APPROVE
    if reason == "scope.directory":
        return "stay below the workspace, or add the directory to `additional_directories`"
    return f"leave the protected path alone, or {_APPROVE}" if reason.startswith("protected.") else _APPROVE


_CAN_EDIT = frozenset((Mode.DEFAULT, Mode.BUBBLE, Mode.DONT_ASK))  # where acceptEdits would allow more


def flip_default(edits: bool, suggestions: tuple[str, ...], mode: Mode) -> str:
    """The smallest change for step 3: a mode that would do, a rule that would do, else a person."""
    ways = []
    if edits and mode in _CAN_EDIT:
        ways.append("allow it once by running in acceptEdits mode")
    if suggestions:
        noun = "rule" if len(suggestions) == 1 else "rules"
        ways.append(f"add the {noun} " + " and ".join(f"`{text}`" for text in suggestions))
    ways.append(_APPROVE)
    return ", or ".join(ways)


_STEERED = 400  # characters of the reason in a steering text


def steer(decision: Decision) -> str:
    """A DENY or an ASK for the model that wrote the command: what stopped it, and what to do instead. One line."""
    reason = decision.message if len(decision.message) <= _STEERED else f"{decision.message[: _STEERED - 1]}…"
    verb = "blocked" if decision.behavior is Behavior.DENY else "a person must agree"
    reason = reason.removeprefix("denied: ").removeprefix("blocked: ").rstrip(".")
    return f"{verb} because {reason}; instead: {decision.flip}" if decision.flip else f"{verb} because {reason}"
