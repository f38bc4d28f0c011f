# SPDX-License-Identifier: GPL-3.0-or-later
"""Text of an agent made fit to be shown to the person who decides about it."""

from __future__ import annotations

import unicodedata

MAX_SHOWN = 4000  # characters

# Letters and symbols that a font draws as nothing, although Unicode counts them as visible.
_BLANK = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
# Control, format (bidi, zero width, tags), surrogate, private, unassigned, line and paragraph separator, odd spaces.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"))


def escape_for_prompt(text: str, *, limit: int = MAX_SHOWN, newline: str = "\n    ") -> str:
    """What a person may safely be shown: nothing invisible, nothing that moves the cursor or turns the reading order.

    Such characters appear as `\\x1b` or `\\u{202e}`. A line break becomes `newline`, whose indent keeps a forged prompt
    out of the first column. A text of more than `limit` characters keeps its head and its tail, and says how much is
    left out between: what matters may well stand at the end.
    """
    if len(text) > limit:
        head = limit * 2 // 3
        tail = limit - head
        return (
            f"{_escape(text[:head], newline)}{newline}[… {len(text) - limit} characters left out …]{newline}"
            f"{_escape(text[-tail:], newline)}"
        )
    return _escape(text, newline)


def _escape(text: str, newline: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character, newline) for character in text)


def _shown(character: str, newline: str) -> str:
    if character == "\n":
        return newline
    if character == " ":
        return character
    code = ord(character)
    hidden = unicodedata.category(character) in _HIDDEN or character in _BLANK or _selects_variant(code)
    if not hidden:
        return character
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{{{code:x}}}"


def _selects_variant(code: int) -> bool:
    return 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
