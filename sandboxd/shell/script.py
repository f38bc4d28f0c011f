# SPDX-License-Identifier: GPL-3.0-or-later
"""The front door of the shell stage: `parse(text)` gives the subcommands of a text, or says why it cannot be read.

Every word is as bash sees it before expansion, with what is certain put in: after `d=src`, the word `"$d/x"` is the literal
`src/x`. A set of possible values stands in `Word.values` where a loop or a branch gives several.
"""

from __future__ import annotations

import re
import unicodedata

from sandboxd.model.shell import Script, Span, Unparsed
from sandboxd.shell.codes import Refused
from sandboxd.shell.grammar import GrammarError
from sandboxd.shell.lexer import Budget
from sandboxd.shell.reader import Reader
from sandboxd.shell.walk import Walker

MAX_BYTES = 64 * 1024
MAX_WORDS = 100_000  # of a text that cannot be read; one with more has not been looked through

_SUSPECT = re.compile(r"[^\n\t\x20-\x7e]")
_QUOTING = re.compile(r"[\"'\\]")
_WORDS = re.compile(r"[^\s;&|<>(){}$`]+")


def parse(text: str) -> Script:
    """Read `text` as bash would. Never raises; what cannot be read for certain has `unparsed` set."""
    refusal = _gate(text)
    if refusal is not None:
        return Script(text, (), refusal)
    try:
        reader = Reader(text, Budget())
        frame, _ = reader.frame(0, "")
        walker = Walker()
        walker.run(frame)
    except Refused as refused:
        return _unparsed(text, refused.code, Span(refused.start, refused.end), refused.detail)
    except GrammarError as error:
        return _unparsed(text, error.code, Span(0, len(text)), error.detail)
    except Exception as error:  # a defect here must become neither a looser answer nor an exception
        return _unparsed(text, "unparsed.internal", Span(0, len(text)), type(error).__name__)
    return Script(text, tuple(walker.out), None, tuple(walker.functions.changes), walker.changes_cwd)


def _gate(text: str) -> Unparsed | None:
    """What is refused before anything is read."""
    if len(text) > MAX_BYTES:
        return refusal(text, "unparsed.size", Span(0, len(text)))
    suspect = _SUSPECT.search(text)
    if suspect is None:
        return None
    for match in _SUSPECT.finditer(text, suspect.start()):
        category = unicodedata.category(match.group())
        if category == "Cc":
            return refusal(text, "unparsed.control_character", Span(match.start(), match.end()))
        if category == "Cs":
            return refusal(text, "unparsed.encoding", Span(match.start(), match.end()))
    if len(text.encode()) > MAX_BYTES:
        return refusal(text, "unparsed.size", Span(0, len(text)))
    return None


def refusal(text: str, code: str, span: Span, detail: str = "") -> Unparsed:
    """Why a text cannot be read, with the literal words that it holds all the same."""
    words = words_of(text)
    return Unparsed(code, span, words, detail, len(words) >= MAX_WORDS)


def _unparsed(text: str, code: str, span: Span, detail: str) -> Script:
    return Script(text, (), refusal(text, code, span, detail))


def words_of(text: str) -> tuple[str, ...]:
    """Literal words found without understanding the text: quotes and backslashes taken off, cut at blanks and operators."""
    plain = _QUOTING.sub("", text.replace("\\\n", ""))
    out: list[str] = []
    for match in _WORDS.finditer(plain):
        out.append(match.group())
        if len(out) >= MAX_WORDS:
            break
    return tuple(out)
