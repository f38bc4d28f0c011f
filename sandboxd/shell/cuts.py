# SPDX-License-Identifier: GPL-3.0-or-later
"""What `${v%…}`, `${v#…}` and `${v:…}` make of a known value, where bash, its version, options and locale leave no choice.

Replacements and changes of case are left out: `nocasematch`, `patsub_replacement` and the locale decide about them.
"""

from __future__ import annotations

import re

from sandboxd.model.shell import Part

CUTS = frozenset(("#", "##", "%", "%%", ":"))
_WHOLE = re.compile(r"[A-Za-z0-9_./:,=@%+ *-]*\Z")  # characters of an unquoted pattern that mean themselves, and `*`
_NUMBER = re.compile(r" *(0|-?[1-9][0-9]{0,4}|) *\Z")
_MAX_LENGTH = 512


def cut(value: str, op: str, operand: tuple[Part, ...]) -> str | None:
    """The value behind the operator; None when it is not certain, or bash refuses."""
    if not value.isascii() or len(value) > _MAX_LENGTH:
        return None
    if op == ":":
        return _substring(value, operand[0].text) if len(operand) == 1 else None
    ends = _ends(operand)
    if ends is None:
        return None
    head, *rest = ends
    if op[0] == "#":
        if not value.startswith(head):
            return value
        tail = rest[0] if rest else ""
        at = value.rfind(tail, len(head)) if rest and len(op) == 2 else value.find(tail, len(head))
        return value if at < 0 else value[at + len(tail) :]
    tail = ends[-1]
    if not value.endswith(tail):
        return value
    limit = len(value) - len(tail)
    if not rest:
        return value[:limit]
    at = value.find(head, 0, limit) if len(op) == 2 else value.rfind(head, 0, limit)
    return value if at < 0 else value[:at]


def _ends(operand: tuple[Part, ...]) -> list[str] | None:
    """The literal text of a pattern, or what stands around its one `*`; None for any other pattern."""
    out = [""]
    for part in operand:
        if "\\" in part.text:
            return None  # inside double quotes it stays and still quotes
        if part.quoted:
            out[-1] += part.text
        elif _WHOLE.match(part.text):
            first, *rest = part.text.split("*")
            out[-1] += first
            out += rest
        else:
            return None
    return out if len(out) <= 2 else None


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
