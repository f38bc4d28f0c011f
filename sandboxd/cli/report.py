# SPDX-License-Identifier: GPL-3.0-or-later
"""A judgement for a person: the command with what matters underlined, its effects as a table, the waterfall step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sandboxd.cli import terminal, text
from sandboxd.consult.prompt import escape_for_prompt
from sandboxd.model import Analysis, Decision, Effect, EffectKind, Sensitivity, Span, Timing

# What an effect does to its target in a word, and its colour; an effect of the sharpest colour is what one looks for.
_EFFECTS: dict[EffectKind, tuple[str, str]] = {
    EffectKind.READ: ("read", terminal.CYAN),
    EffectKind.WRITE: ("written", terminal.YELLOW),
    EffectKind.DELETE: ("deleted", terminal.RED),
    EffectKind.EXEC: ("run", terminal.DIM),
    EffectKind.NETWORK: ("sent to", terminal.MAGENTA),
    EffectKind.PROCESS: ("signalled", terminal.YELLOW),
    EffectKind.SYSTEM: ("system", terminal.RED),
    EffectKind.ENV: ("shell state", terminal.DIM),
    EffectKind.OPAQUE: ("opaque", terminal.RED),
}


def source(command: str, decision: Decision, effects: Iterable[Effect] = (), *, on: bool) -> str:
    """The command, indented. What the decision rests on is underlined: in the verdict's colour, else by carets below its
    line; with colours the words that stand for an effect have that effect's."""
    paint: list[tuple[str, ...]] = [()] * len(command)
    for effect in effects:
        _put(paint, effect.span, (_EFFECTS[effect.kind][1],))
    verdict = (terminal.UNDERLINE, terminal.VERDICT_COLOURS[decision.behavior.value])
    for item in decision.evidence:
        if item.span is not None:
            _put(paint, item.span, verdict)
    out = []
    start = 0
    for line in command.split("\n"):
        codes = paint[start : start + len(line)]
        out.append("  " + _painted(line, codes, on=on))
        widths = [len(escape_for_prompt(char)) for char in line]
        carets = "".join(("^" if code == verdict else " ") * width for width, code in zip(widths, codes, strict=True))
        if not on and carets.strip():
            out.append("  " + carets.rstrip())
        start += len(line) + 1
    return "\n".join(out)


def _put(paint: list[tuple[str, ...]], span: Span, codes: tuple[str, ...]) -> None:
    for position in range(span.start, min(span.end, len(paint))):
        paint[position] = codes


def _painted(line: str, codes: Sequence[tuple[str, ...]], *, on: bool) -> str:
    pieces = []
    start = 0
    for position in range(1, len(line) + 1):
        if position == len(line) or codes[position] != codes[start]:
            pieces.append(terminal.paint(escape_for_prompt(line[start:position]), *codes[start], on=on))
            start = position
    return "".join(pieces)


def effects(analysis: Analysis, *, on: bool) -> str:
    """Every effect once: what happens, to what, which words say so, and by which row or rule. "" when there is none."""
    rows: dict[tuple[str, ...], None] = {}
    for effect in analysis.effects:
        words = terminal.shown(analysis.text[effect.span.start : effect.span.end], 40)
        row = (_kind(effect, on=on), _target(effect), words, terminal.shown(effect.because, 60), terminal.shown(_why(effect), 80))
        rows[row] = None
    return terminal.table(rows, ("  what", "target", "in", "row", "why")) if rows else ""


def _kind(effect: Effect, *, on: bool) -> str:
    word, colour = _EFFECTS[effect.kind]
    return "  " + terminal.paint(word, colour, on=on)


def _target(effect: Effect) -> str:
    if effect.target is None:
        known = ", ".join(effect.fragments)
        return f"anything ({terminal.shown(known, 60)} …)" if known else "anything"
    return terminal.shown(effect.target, 80) + ("/**" if effect.recursive else "")


def _why(effect: Effect) -> str:
    secret = {Sensitivity.NONE: "", Sensitivity.SECRET: "secret", Sensitivity.SETTINGS: "an agent's settings"}[effect.sensitivity]
    act = "" if effect.act is None else effect.act.value
    direction = "" if effect.direction is None else effect.direction.value
    return ", ".join(part for part in (act, direction, secret, effect.code, effect.detail) if part)


def trace(decision: Decision) -> str:
    """The waterfall in its order: what each step said, and where it ended."""
    rows = [
        (
            f"  {entry.step}",
            entry.name,
            entry.outcome.value if entry.outcome else "-",
            terminal.shown(entry.reason),
            "<- decided" if entry.step == decision.step else "",
        )
        for entry in decision.trace
    ]
    if not rows:
        return ""
    lines = [terminal.table(rows, ("  step", "asks", "said", "reason", ""))]
    said = next((entry.outcome for entry in decision.trace if entry.step == decision.step), decision.behavior)
    if said is not None and said is not decision.behavior:
        lines.append(f"  {said.value} became {decision.behavior.value}: {terminal.shown(decision.message, 400)}")
    return "\n".join(lines)


def timings(took: Sequence[Timing]) -> str:
    """How long each stage took. Those who were asked were asked at once. "" when nothing was measured."""
    if not took:
        return ""
    return terminal.table([(f"  {item.stage}", _time(item.seconds)) for item in took], ("  stage", "took"))


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def verdict(decision: Decision, *, on: bool) -> list[str]:
    """The decision, what it rests on and what would turn it, a line each."""
    return [text.verdict(decision, on=on), *text.reasons(decision)]
