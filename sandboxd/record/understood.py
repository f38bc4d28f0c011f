# SPDX-License-Identifier: GPL-3.0-or-later
"""What was understood of a command, in short: kept with its decision, and made into an analysis again by whoever reads it.

Words are kept as values, not as they were written; what has its default is left out. A secret is blotted out wherever it
stands: in the text, in the word that holds it, in the targets made of it; and positions follow the text as it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sandboxd.model import (
    Act,
    Analysis,
    AnalyzedCommand,
    Decision,
    Direction,
    Effect,
    EffectKind,
    Sensitivity,
    Span,
    Subcommand,
    Unparsed,
)
from sandboxd.record.blotted import Blotted
from sandboxd.record.codec import loads

MAX_EFFECTS = 500  # of one command that are kept


@dataclass(frozen=True, slots=True)
class _Effect:
    kind: EffectKind
    because: str
    span: Span | None = None
    target: str | None = None
    act: Act | None = None
    code: str = ""
    detail: str = ""
    recursive: bool = False
    pattern: bool = False
    fragments: tuple[str, ...] = ()
    sensitivity: Sensitivity = Sensitivity.NONE
    direction: Direction | None = None


@dataclass(frozen=True, slots=True)
class _Command:
    argv: tuple[str | None, ...]
    via: str = ""
    span: Span | None = None
    effects: tuple[_Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class _Understood:
    unparsed: str | None = None
    detail: str = ""
    read_only: bool = False
    concurrency_safe: bool = False
    destructive: bool = False
    changes_cwd: bool = False
    commands: tuple[_Command, ...] = ()


_OPTIONAL = ("target", "act", "code", "detail", "recursive", "pattern", "fragments", "direction")


def summary(analysis: Analysis, blotted: Blotted) -> dict[str, object]:
    """An analysis of the text that became `blotted`, as plain values for JSON."""
    left = MAX_EFFECTS
    commands = []
    for command in analysis.commands:
        kept = command.effects[:left]
        left -= len(kept)
        commands.append(
            {
                "argv": blotted.words(command.argv),
                "via": command.via,
                "span": blotted.span(command.subcommand.span),
                "effects": [_effect(effect, blotted) for effect in kept],
            }
        )
    unparsed = analysis.unparsed
    return {
        "unparsed": None if unparsed is None else unparsed.reason,
        "detail": "" if unparsed is None else blotted.piece(unparsed.detail),
        "read_only": analysis.read_only,
        "concurrency_safe": analysis.concurrency_safe,
        "destructive": analysis.destructive,
        "changes_cwd": analysis.changes_cwd,
        "commands": commands,
    }


def _effect(effect: Effect, blotted: Blotted) -> dict[str, object]:
    out: dict[str, object] = {"kind": effect.kind, "because": effect.because, "span": blotted.span(effect.span)}
    for name in _OPTIONAL:
        value = getattr(effect, name)
        if value:
            out[name] = _clean(value, blotted.piece)
    if effect.sensitivity is not Sensitivity.NONE:
        out["sensitivity"] = effect.sensitivity
    return out


def _clean(value: object, piece: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return piece(value)
    return tuple(map(piece, value)) if isinstance(value, tuple) else value


def moved(decision: Decision, blotted: Blotted) -> Decision:
    """A decision whose evidence points into the text as it is kept."""
    if not blotted.changed:
        return decision
    evidence = tuple(replace(item, span=None if item.span is None else blotted.span(item.span)) for item in decision.evidence)
    return replace(decision, evidence=evidence)


def understood(text: str, cwd: str, encoded: str) -> Analysis | None:
    """The analysis of a recorded command; None where none was kept, or by a version that kept less."""
    if not encoded:
        return None
    try:
        found = loads(_Understood, encoded)
    except ValueError:
        return None
    nowhere = Span(0, 0)
    return Analysis(
        text=text,
        cwd=cwd,
        commands=tuple(
            AnalyzedCommand(
                Subcommand((), command.span or nowhere),
                command.argv,
                tuple(
                    Effect(
                        effect.kind,
                        effect.because,
                        effect.span or nowhere,
                        effect.target,
                        effect.act,
                        effect.code,
                        effect.detail,
                        effect.recursive,
                        effect.pattern,
                        effect.fragments,
                        effect.sensitivity,
                        effect.direction,
                    )
                    for effect in command.effects
                ),
                via=command.via,
            )
            for command in found.commands
        ),
        unparsed=None if found.unparsed is None else Unparsed(found.unparsed, nowhere, detail=found.detail),
        read_only=found.read_only,
        concurrency_safe=found.concurrency_safe,
        destructive=found.destructive,
        changes_cwd=found.changes_cwd,
    )
