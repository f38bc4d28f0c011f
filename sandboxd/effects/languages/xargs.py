# SPDX-License-Identifier: GPL-3.0-or-later
"""xargs: a command with words from standard input behind it, or in place of a marker."""

from __future__ import annotations

from sandboxd.effects.call import Call
from sandboxd.model import Part, PartKind, Word, WordFlag


def read(call: Call) -> None:
    parsed = call.parsed
    words = tuple(parsed.operands)
    if not words:
        return  # echo
    marks = call.values("-I", "--replace", "-i", "-J")
    plain = parsed.has("-I", "--replace", "-i", "-J")
    if not plain:
        call.nest(words, "xargs", appended=True)
        return
    if any(mark.value is None for mark in marks):
        call.opaque("opaque.dynamic_option", "xargs.marker", call.span, "", call.mentions())
        return
    mark = (marks[-1].value if marks else None) or "{}"
    call.nest(tuple(_replaced(word, mark) for word in words), "xargs", appended=parsed.has("-J"))


def _replaced(word: Word, mark: str) -> Word:
    if not any(part.kind is PartKind.LITERAL and mark in part.text for part in word.parts):
        return word
    parts: list[Part] = []
    for part in word.parts:
        if part.kind is not PartKind.LITERAL:
            parts.append(part)
            continue
        for at, piece in enumerate(part.text.split(mark)):
            if at:
                parts.append(Part(PartKind.VARIABLE, "{}", True))
            if piece:
                parts.append(Part(PartKind.LITERAL, piece, True))
    return Word(word.span, tuple(parts), (), word.flags | {WordFlag.VARIABLE})
