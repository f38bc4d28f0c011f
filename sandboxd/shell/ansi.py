# SPDX-License-Identifier: GPL-3.0-or-later
"""Decoding of `$'…'`, as bash does it in a UTF-8 locale."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|c(.)|(.))",
    re.DOTALL,
)
_SIMPLE = {"a": 7, "b": 8, "e": 27, "E": 27, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "?": 63}


def decode(body: str) -> str | None:
    """The text of `$'body'`, or None when it is not certain: not UTF-8, a NUL (bash would cut it there), odd forms."""
    if "\\" not in body:
        return body
    if "\\x{" in body:
        return None  # an undocumented form: `\x{72}` is `r`, and what else it takes is bash's secret
    out = bytearray()
    done = 0
    for match in _ESCAPE.finditer(body):
        out += body[done : match.start()].encode()
        done = match.end()
        octal, short, four, eight, control, simple = match.groups()
        if octal is not None:
            out.append(int(octal, 8) & 0xFF)
        elif short is not None:
            out.append(int(short, 16))
        elif four is not None or eight is not None:
            code = int(four or eight, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                return None
            out += chr(code).encode()
        elif control is not None:
            if control == "\\" or not control.isascii():
                return None  # `\c\\` reads two characters in some versions
            out.append(127 if control == "?" else ord(control.upper()) & 0x1F)
        elif simple in _SIMPLE:
            out.append(_SIMPLE[simple])
        else:
            out += b"\\" + simple.encode()
    out += body[done:].encode()
    if 0 in out:
        return None
    try:
        return out.decode()
    except UnicodeDecodeError:
        return None
