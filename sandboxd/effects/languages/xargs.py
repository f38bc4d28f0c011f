# SPDX-License-Identifier: GPL-3.0-or-later
"""xargs: a command with words from standard input behind it, or in place of a marker."""

from __future__ import annotations

from sandboxd.effects.call import Call
from sandboxd.model import Part, PartKind, Word, WordFlag

# What is appended when no word of it begins with a dash.
_PLAINLY = frozenset((WordFlag.VARIABLE, WordFlag.SPLITS, WordFlag.PLAIN))


def read(call: Call) -> None:
    parsed = call.parsed
    words = tuple(parsed.operands)
    if not words:
        return  # echo
    marks = call.values("-I", "--replace", "-i", "-J")
    plain = parsed.has("-I", "--replace", "-i", "-J")
    sure = _no_dash(call)
    if not plain and sure:
        call.nest((*words, Word(words[-1].span, (Part(PartKind.VARIABLE, "{}"),), (), _PLAINLY)), "xargs")
        return
    if not plain:
        call.nest(words, "xargs", appended=True)
        return
    if any(mark.value is None for mark in marks):
        call.opaque("opaque.dynamic_option", "xargs.marker", call.span, "", call.mentions())
        return
    mark = (marks[-1].value if marks else None) or "{}"
    call.nest(tuple(_replaced(word, mark, sure) for word in words), "xargs", appended=parsed.has("-J"))


def _no_dash(call: Call) -> bool:
    """Whether no word that it reads begins with a dash. A separator of its own would cut the words anew."""
    if not call.fed or call.parsed.has("-d", "--delimiter", "-a", "--arg-file"):
        return False
    return call.fed == "words" or call.parsed.has("-0", "--null")


def _replaced(word: Word, mark: str, sure: bool) -> Word:
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
    flags = word.flags | {WordFlag.VARIABLE}
    if sure and parts[0].kind is PartKind.VARIABLE and parts[0].text == "{}" and len(parts) == 1:
        flags |= {WordFlag.PLAIN}
    return Word(word.span, tuple(parts), (), flags)
