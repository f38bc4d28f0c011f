# SPDX-License-Identifier: GPL-3.0-or-later
"""`@file` words: the file is read and sent. `%output{file}` in -w writes. URLs of schemes beside the web can send."""

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


# Schemes whose URL only names what to get. Of the rest some carry text to the server in the URL itself (gopher, dict, mqtt).
_FETCHES = frozenset(("http", "https", "ftp", "ftps", "file"))


def read(call: Call) -> None:
    for word in call.parsed.operands:
        for text in word.values or (word.prefix,):
            scheme, colon, _ = text.partition("://")
            if colon and scheme.lower() not in _FETCHES:
                call.host(ROLES["host.send"], word, f"{call.id}.scheme", word.span)
    for word in call.values("-w", "--write-out"):
        if word.value is None or "%output" in word.value or word.value[:1] == "@":
            call.path(ROLES["path.write"], None, f"{call.id}.-w", word.span)
        if word.prefix[:1] == "@":
            call.path(ROLES["path.read"], cut(word, 1), f"{call.id}.@file", word.span)
    for word in call.values(*_BODIES):
        text = word.value if word.value is not None else word.prefix
        at = text.find("@")
        if at >= 0 and (at == 0 or text[at - 1] == "="):
            call.sends = True
            call.path(ROLES["path.read"], cut(word, at + 1), f"{call.id}.@file", word.span)
        elif "=<" in text:
            call.sends = True
            call.path(ROLES["path.read"], cut(word, text.index("=<") + 2), f"{call.id}.@file", word.span)
