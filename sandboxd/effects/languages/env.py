# SPDX-License-Identifier: GPL-3.0-or-later
"""env: options, text to split, assignments, then a command; alone it prints the environment, which holds secrets."""

from __future__ import annotations

import re

from sandboxd.effects.argv import cut, literal, splits
from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES
from sandboxd.effects.targets import fragments
from sandboxd.model import Word

# Text of -S that is split at blanks and that nothing else happens to: no quotes, escapes, variables, comments.
_SPLIT = re.compile(r"[A-Za-z0-9_./:=,+@%^~*?\s-]*\Z")


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
    texts = call.values("-S", "--split-string")
    if texts:
        _split(call, texts, operands)
        return
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


def _split(call: Call, texts: list[Word], operands: list[Word]) -> None:
    """`-S TEXT` puts the pieces of TEXT in its place: env reads them, and what follows, anew."""
    text = texts[0].value
    # An option behind it is one of the command's, if TEXT names the command.
    last = call.parsed.given[-1].name_in(("-S", "--split-string")) and call.parsed.end is None
    if len(texts) > 1 or text is None or not last or not _SPLIT.match(text):
        call.opaque("opaque.code", "env.-S", texts[0].span, "split by env's own rules", call.mentions(True))
        return
    pieces = [literal(piece, texts[0].span) for piece in text.split()]
    call.nest((literal("env", texts[0].span), *pieces, *operands), "env -S", appended=call.appended)
