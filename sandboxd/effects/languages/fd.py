# SPDX-License-Identifier: GPL-3.0-or-later
"""fd: `-x` and `-X` take all words up to a `;` as a command, with what is found in the place of `{}` and its kin or behind."""

from __future__ import annotations

import itertools
import re

from sandboxd.effects import selectors
from sandboxd.effects.call import Call
from sandboxd.model import Part, PartKind, Word, WordFlag

_EACH, _BATCH = frozenset(("-x", "--exec")), frozenset(("-X", "--exec-batch"))
_EXCLUDES = frozenset(("-E", "--exclude", "--ignore-file"))
_MARK = re.compile(r"\{(?:/|//|\.|/\.)?\}")


def read(call: Call) -> None:
    given = call.values(*_EACH, *_BATCH)
    if not given:
        return
    words = call.words
    starts = [at for at, word in enumerate(words) if word.value in _EACH or word.value in _BATCH]
    if len(starts) != 1 or len(given) != 1 or words[starts[0] + 1 : starts[0] + 2] != (given[0],):
        call.opaque("opaque.program", "fd.-x", given[0].span, "more than one command, or one that is attached", call.mentions())
        return
    inner: list[Word] = []
    for word in words[starts[0] + 1 :]:
        if word.value == ";":
            break
        inner.append(word)
    if any(word.value == "--" for word in inner) and len(words) > starts[0] + 1 + len(inner):
        # The command's own `--` ends no options of fd: what follows its `;` can be another -x.
        call.opaque("opaque.program", "fd.-x", given[0].span, "options behind a command with `--`", call.mentions())
    if inner:
        # The options of the command are not fd's.
        first, last = inner[0].span.start, inner[-1].span.end
        call.effects[:] = [
            effect for effect in call.effects if effect.code != "opaque.unlisted_option" or not first <= effect.span.start < last
        ]
    marked = [_MARK.search(word.value or "") is not None for word in inner]
    if not inner or any(word.value is None for word in inner):
        call.opaque("opaque.program", "fd.-x", given[0].span, "a command that is not known", call.mentions())
    elif words[starts[0]].value in _BATCH:
        call.nest(
            tuple(word for word, mark in zip(inner, marked, strict=True) if not mark),
            "fd -X",
            appended=True,
            hints=_sought(words[: starts[0]]),
        )
    else:
        call.nest(tuple(_found(word) for word in inner), "fd -x", appended=not any(marked), hints=_sought(words[: starts[0]]))


def _sought(words: tuple[Word, ...]) -> tuple[str, ...]:
    """What the patterns and places say of the names that are found, as far as they are names: `^\\.env$` is `.env`."""
    sought = (word.value for before, word in itertools.pairwise(words) if before.value not in _EXCLUDES)
    names = selectors.said(("fd", *(word.value for word in words[1:])))
    return (*(text.lstrip("^").rstrip("$").replace("\\.", ".") for text in sought if text and text[:1] != "-"), *names)


def _found(word: Word) -> Word:
    """The word with what is found in the place of its marks: a path of unknown text."""
    text = word.value or ""
    if _MARK.search(text) is None:
        return word
    parts: list[Part] = []
    for at, piece in enumerate(_MARK.split(text)):
        if at:
            parts.append(Part(PartKind.VARIABLE, "{}", True))
        if piece:
            parts.append(Part(PartKind.LITERAL, piece, True))
    return Word(word.span, tuple(parts), (), frozenset((WordFlag.VARIABLE,)))
