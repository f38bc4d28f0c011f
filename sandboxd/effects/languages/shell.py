# SPDX-License-Identifier: GPL-3.0-or-later
"""bash, sh, dash, zsh: `-c TEXT` is analysed like the line itself; a script, standard input and start-up files are OPAQUE."""

from __future__ import annotations

from sandboxd.effects.call import Call
from sandboxd.effects.targets import fragments


def read(call: Call) -> None:
    parsed = call.parsed
    operands = parsed.operands
    if parsed.has("-n", "--version", "--help") and not parsed.has("-c") and not operands:
        return
    if parsed.has("-c"):
        if not operands:
            return
        hints = tuple(piece for word in operands[1:] for piece in fragments(word, call.place))
        call.code(operands[0], f"{call.name} -c", f"{call.id}.-c", (*hints, *call.feed))
        return
    if operands and not parsed.has("-s"):
        call.opaque("opaque.script", f"{call.id}.script", operands[0].span, operands[0].prefix, call.mentions(True, operands[0]))
        return
    call.opaque("opaque.script", f"{call.id}.stdin", call.span, "runs what it reads", call.mentions(True))
