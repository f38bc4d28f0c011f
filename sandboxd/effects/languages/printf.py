# SPDX-License-Identifier: GPL-3.0-or-later
"""printf: prints, unless `-v NAME` assigns; NAME's subscript is evaluated."""

from __future__ import annotations

from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES


def read(call: Call) -> None:
    for word in call.values("-v"):
        name = word.value
        if name is None or not name.isidentifier() or not call.environment.ordinary(name):
            call.opaque("shell.evaluates", "printf.-v", word.span, name or word.prefix, call.mentions())
        else:
            call.effect(ROLES["env"], "printf.-v", word.span, name)
