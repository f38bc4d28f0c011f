# SPDX-License-Identifier: GPL-3.0-or-later
"""What `${v%…}`, `${v#…}` and `${v:…}` make of a known value, where bash, its version, options and locale leave no choice.

Replacements and changes of case are left out: `nocasematch`, `patsub_replacement` and the locale decide about them.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sandboxd.model.shell import Part

CUTS = frozenset(("#", "##", "%", "%%", ":"))
_WHOLE = re.compile(r"[A-Za-z0-9_./:,=@%+ *-]*\Z")  # characters of an unquoted pattern that mean themselves, and `*`
_NUMBER = re.compile(r" *(0|-?[1-9][0-9]{0,4}|) *\Z")
_MAX_LENGTH = 512
_MAX_STARS = 2


def cut(value: str, op: str, operand: tuple[Part, ...]) -> str | None:
    """The value behind the operator; None when it is not certain, or bash refuses."""
    if not value.isascii() or len(value) > _MAX_LENGTH:
        return None
    if op == ":":
        return _substring(value, operand[0].text) if len(operand) == 1 else None
    pattern = _pattern(operand)
    if pattern is None:
        return None
    sizes = range(len(value) + 1)
    for size in reversed(sizes) if len(op) == 2 else sizes:
        if op[0] == "#" and pattern.fullmatch(value, 0, size):
            return value[size:]
        if op[0] == "%" and pattern.fullmatch(value, len(value) - size):
            return value[: len(value) - size]
    return value


@lru_cache(maxsize=256)
def _pattern(operand: tuple[Part, ...]) -> re.Pattern[str] | None:
    out = []
    stars = 0
    for part in operand:
        if "\\" in part.text:
            return None  # inside double quotes it stays and still quotes
        if part.quoted:
            out.append(re.escape(part.text))
            continue
        if not _WHOLE.match(part.text):
            return None
        stars += part.text.count("*")
        out.append(re.escape(part.text).replace(r"\*", ".*"))
    text = "".join(out)
    return re.compile(text, re.DOTALL) if stars <= _MAX_STARS else None


def _substring(value: str, text: str) -> str | None:
    pieces = text.split(":")
    numbers = [_NUMBER.match(piece) for piece in pieces]
    if len(numbers) > 2 or not text or None in numbers:
        return None
    start, *lengths = [int(match[1] or "0") for match in numbers if match is not None]
    begin = start if start >= 0 else len(value) + start
    if begin < 0 or begin > len(value):
        return ""
    if not lengths:
        return value[begin:]
    end = begin + lengths[0] if lengths[0] >= 0 else len(value) + lengths[0]
    return value[begin:end] if end >= begin else None
