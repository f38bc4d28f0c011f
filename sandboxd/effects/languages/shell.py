# SPDX-License-Identifier: GPL-3.0-or-later
"""Shells: `-c TEXT` is analysed like the line itself; a script, standard input and start-up files are OPAQUE.

The text is read as bash reads it. Where a POSIX shell, or one with a grammar of its own, may read it otherwise, what is
found is evidence only: the command stays OPAQUE.
"""

from __future__ import annotations

import re

from sandboxd.effects.call import Call, Nested
from sandboxd.effects.roles import ROLES
from sandboxd.effects.targets import fragments

_BASH = frozenset(("bash", "rbash"))
_POSIX = frozenset(("sh", "dash", "ash"))
# In a POSIX shell `$'` is a dollar and a quote, `[[` the name of a command, `((` two subshells (POSIX.1-2017, XCU 2).
_NOT_POSIX = re.compile(r"\$'|\[\[(?:\s|\Z)|(?<!\$)\(\(")
# Plain words, quotes, pipes and lists: all shells read these alike. No `=` (zsh looks up `=name`), no expansion, no redirect.
_PLAIN = re.compile(r"[\w ./:,@%+|&;\"'-]*\Z", re.ASCII)


def read(call: Call) -> None:
    parsed = call.parsed
    operands = parsed.operands
    if parsed.has("-c"):
        if operands:
            hints = tuple(piece for word in operands[1:] for piece in fragments(word, call.place))
            call.code(operands[0], f"{call.name} -c", f"{call.id}.-c", (*hints, *call.feed))
            _dialect(call, operands[0].value)
        return
    plain = call.name in _BASH or call.name in _POSIX
    if parsed.has("-n") and plain and not parsed.has("-s"):
        for word in operands[:1]:
            call.path(ROLES["path.read"], word, f"{call.id}.-n", word.span)
        return
    if operands and not parsed.has("-s"):
        call.opaque("opaque.script", f"{call.id}.script", operands[0].span, operands[0].prefix, call.mentions(True, operands[0]))
        return
    # What a command in the text reads is not run, and what it leaves is: the text is evidence, whoever feeds it.
    call.opaque("opaque.script", f"{call.id}.stdin", call.span, "runs what it reads", call.mentions(True))
    if call.feed:
        call.nested.append(Nested(f"| {call.name}", call.span, call.place.cwds, text="\n".join(call.feed)))


def _dialect(call: Call, text: str | None) -> None:
    if text is None or call.name in _BASH:
        return
    known = _NOT_POSIX.search(text) is None if call.name in _POSIX else _PLAIN.match(text) is not None
    if not known:
        detail = "read as bash, which this shell may understand otherwise"
        call.opaque("opaque.code", f"{call.id}.dialect", call.span, detail, call.mentions(True))
