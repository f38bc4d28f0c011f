# SPDX-License-Identifier: GPL-3.0-or-later
"""tar: what the archive and the operands mean depends on the one action that is given.

`-C` is for members alone, and for those behind it (GNU tar manual, 6.10.1): the archive, the lists and the logs are seen from
where tar was started.
"""

from __future__ import annotations

from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES
from sandboxd.effects.targets import moved
from sandboxd.model import Word

_LIST = ("-t", "--list", "-d", "--diff", "--compare", "--test-label")
_EXTRACT = ("-x", "--extract", "--get")
_CREATE = ("-c", "--create")
_CHANGE = ("-r", "--append", "-u", "--update", "-A", "--catenate", "--concatenate", "--delete")


def read(call: Call) -> None:
    parsed = call.parsed
    start = call.place
    inside = [start]  # where members can be
    for word in call.values("-C", "--directory"):
        inside.append(moved(word, inside[-1]))
    archives = call.values("-f", "--file")
    if parsed.has(*_EXTRACT):
        for word in archives:
            _archive(call, "path.read", word)
        if not parsed.has("-O", "--to-stdout"):
            for call.place in inside[min(1, len(inside) - 1) :]:
                call.named(ROLES["path.extract"], ".", "tar.extract", call.span, edit=False)
            call.place = start
        return
    if parsed.has(*_CREATE, *_CHANGE):
        role = "path.write" if parsed.has(*_CREATE) else "path.edit"
        for word in archives:
            _archive(call, role, word)
        for call.place in inside:
            for word in parsed.operands:
                call.path(ROLES["path.tree"], word, "tar.member", word.span)
                if parsed.has("--remove-files"):
                    call.path(ROLES["path.delete_tree"], word, "tar.--remove-files", word.span, edit=False)
        call.place = start
        return
    if parsed.has(*_LIST):
        for word in archives:
            _archive(call, "path.read", word)
        return
    if parsed.given or parsed.operands:
        call.opaque("opaque.unlisted_option", "tar.action", call.span, "no action", call.mentions())


def _archive(call: Call, role: str, word: Word) -> None:
    if word.value == "-":
        return
    for text in word.values or (word.prefix,):
        host, colon, _ = text.partition(":")
        remote = "/" not in host and (bool(colon) or not word.values)
        if remote and not call.parsed.has("--force-local"):
            # GNU tar takes `host:file` for a file on another machine and starts a remote shell.
            call.opaque("opaque.remote", "tar.archive", word.span, text, call.mentions())
            break
    call.path(ROLES[role], word, "tar.archive", word.span, edit=False)
