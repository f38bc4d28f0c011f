# SPDX-License-Identifier: GPL-3.0-or-later
"""Words of the form `@file`: the file is read and sent."""

from __future__ import annotations

from sandboxd.effects.argv import cut
from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES

_BODIES = (
    "-d",
    "--data",
    "--data-ascii",
    "--data-binary",
    "--data-urlencode",
    "--json",
    "-F",
    "--form",
    "-H",
    "--header",
    "--body-file",
)


def read(call: Call) -> None:
    for word in call.values(*_BODIES):
        text = word.value if word.value is not None else word.prefix
        at = text.find("@")
        if at >= 0 and (at == 0 or text[at - 1] == "="):
            call.path(ROLES["path.read"], cut(word, at + 1), f"{call.id}.@file", word.span)
        elif "=<" in text:
            call.path(ROLES["path.read"], cut(word, text.index("=<") + 2), f"{call.id}.@file", word.span)
