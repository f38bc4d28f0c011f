# SPDX-License-Identifier: GPL-3.0-or-later
"""env: assignments, then a command; alone it prints the environment, which holds secrets."""

from __future__ import annotations

from sandboxd.effects.argv import cut, splits
from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES
from sandboxd.effects.targets import fragments


def read(call: Call) -> None:
    parsed = call.parsed
    operands = list(parsed.operands)
    for given in parsed.given:
        if given.name_in(("-i", "-u")):
            # What protects a run (git's disarming, PATH) is environment too.
            name = given.value.value if given.value is not None else None
            if given.name_in(("-i",)) or name is None or not call.environment.ordinary(name):
                call.clean = False
                call.opaque("env.unlisted", f"env.{given.name}", given.span, name or "", call.mentions())
    if operands and operands[0].value == "-":
        operands.pop(0)
        call.clean = False
        call.opaque("env.unlisted", "env.-", call.span, "", call.mentions())
    while operands:
        word = operands[0]
        name, equals, _ = (word.value if word.value is not None else word.prefix).partition("=")
        if not equals:
            break
        operands.pop(0)
        if splits(word) or not call.environment.harmless(name, cut(word, len(name) + 1)):
            call.clean = False
            call.opaque("env.unlisted", f"env.{name}", word.span, name, fragments(word, call.place))
    if operands:
        call.nest(tuple(operands), "env", appended=call.appended)
    elif call.appended:
        call.opaque("opaque.dynamic_command", "env.command", call.span)
    else:
        call.effect(ROLES["secret"], "env.print", call.span, detail="the environment", secret=True)
