# SPDX-License-Identifier: GPL-3.0-or-later
"""printf: prints, unless `-v NAME` assigns, whose subscript is evaluated, or `%n`, which counts what was printed."""

from __future__ import annotations

import re

from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES

_COUNTS = re.compile(r"%[^%a-zA-Z]*n")


def read(call: Call) -> None:
    for word in call.values("-v"):
        name = word.value
        if name is None or not name.isidentifier() or not call.environment.ordinary(name):
            call.opaque("shell.evaluates", "printf.-v", word.span, name or word.prefix, call.mentions())
        else:
            call.effect(ROLES["env"], "printf.-v", word.span, name)
    _counted(call)


def _counted(call: Call) -> None:
    """`%n` sets the variable that its argument names; a format that is not known may hold it."""
    format_, *arguments = call.parsed.operands or (None,)
    if format_ is None:
        return
    certain = any(_COUNTS.search(text.replace("%%", "")) for text in format_.values)
    if not certain and format_.values:
        return
    for word in arguments:
        names = word.values or ((None,) if certain else ())
        if any(name is None or (name.isidentifier() and not call.environment.ordinary(name)) for name in names):
            call.opaque("env.unlisted", "printf.%n", word.span, word.prefix, call.mentions())
