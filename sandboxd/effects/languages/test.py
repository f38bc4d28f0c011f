# SPDX-License-Identifier: GPL-3.0-or-later
"""`test`, `[` and `[[`: looking at files is harmless; `-v` evaluates its operand, so nothing unknown may become it."""

from __future__ import annotations

import itertools

from sandboxd.effects.argv import splits
from sandboxd.effects.call import Call
from sandboxd.effects.languages import names
from sandboxd.effects.roles import ROLES
from sandboxd.model import Word, WordFlag

_FILES = names("-a -b -c -d -e -f -g -h -k -p -r -s -u -w -x -G -L -N -O -S")
_PAIRS = frozenset(("-nt", "-ot", "-ef"))
_NUMBERS = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))
# What can follow an operand of `[`.
_BINARY = names("= == != < > -a -o ) ] -eq -ne -lt -le -gt -ge -nt -ot -ef")


def read(call: Call) -> None:
    words = call.words[1:]
    double = call.name == "[["
    if not double:
        _unary(call, words)
    for word in words:
        if not double and splits(word) and WordFlag.PLAIN not in word.flags:
            call.opaque("opaque.dynamic_option", "test.splits", word.span, word.prefix, call.mentions())
    for at, word in enumerate(words):
        value = word.value
        after = words[at + 1] if at + 1 < len(words) else None
        before = words[at - 1] if at else None
        if value in ("-v", "-R") and after is not None and after.value not in ("]", "]]"):
            if not _plain_name(after):
                call.opaque("shell.evaluates", "test.-v", after.span, after.prefix)
        elif (
            value in _FILES
            and after is not None
            and after.value not in ("]", "]]")
            and not (value == "-a" and before is not None and at > 0)
        ):
            call.path(ROLES["path.stat"], after, f"test.{value}", after.span)
        elif value in _PAIRS:
            for side in (before, after):
                if side is not None:
                    call.path(ROLES["path.stat"], side, f"test.{value}", side.span)
        elif value in _NUMBERS and double and not call.compares:
            for side in (before, after):
                if side is not None and not _number(side):
                    call.opaque("shell.evaluates", f"test.{value}", side.span, side.prefix)


def _unary(call: Call, words: tuple[Word, ...]) -> None:
    """A word that is not known can be `-v`, and then the one behind it is evaluated; not where an operator or the end follows."""
    for word, after in itertools.pairwise(words):
        may_be = not word.values and not word.prefix.strip("-vR") and WordFlag.PLAIN not in word.flags
        if may_be and after.value not in _BINARY and not _plain_name(after):
            call.opaque("shell.evaluates", "test.unary", word.span, word.prefix, call.mentions())


def _plain_name(word: Word) -> bool:
    return word.value is not None and word.value.isidentifier()


def _number(word: Word) -> bool:
    """Whether the operand is a number for certain, or a count that bash itself keeps."""
    if word.value is not None:
        return word.value.lstrip("+-").isdecimal()
    return len(word.parts) == 1 and word.parts[0].text in (
        "#",
        "?",
        "$",
        "!",
        "RANDOM",
        "SECONDS",
        "EUID",
        "UID",
        "PPID",
        "BASHPID",
    )
