# SPDX-License-Identifier: GPL-3.0-or-later
"""ps: words without a dash are BSD letters, among them `e`, which prints the environment of processes, as does `-o environ`."""

from __future__ import annotations

import re

from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES
from sandboxd.model import Word

# BSD letters that only choose rows or columns. Not among them: e (environment), o, O, k, p, q, t, U (take a value).
_LETTERS = re.compile(r"[acfghHjlLmnNrsSTuvwxXZ]+\Z")
_COLUMNS = re.compile(r"[acfghHjlLmnNrsSTuvwxXZ]*o\Z")
_WITH_E = re.compile(r"[acefghHjlLmnNrsSTuvwxXZ]+\Z")
_NUMBERS = re.compile(r"[\d,]+\Z")


def read(call: Call) -> None:
    parsed = call.parsed
    columns = call.values("-o", "--format", "-O")
    takes = False
    for word in parsed.operands:
        text = word.value
        if takes:
            columns.append(word)
            takes = False
        elif text is not None and _COLUMNS.match(text):
            takes = True
        elif text is None or not (_LETTERS.match(text) or _NUMBERS.match(text)):
            _secret(call, word, "a BSD option that is not known to hide the environment")
    for word in columns:
        if word.value is None or "env" in word.value.lower():
            _secret(call, word, "a column that may be the environment")
    # procps reads all words anew as BSD letters when one makes no sense with a dash: -x, -h, or -u with no user's name.
    if parsed.has("-e") and parsed.has("-x", "-r", "-X", "-h"):
        _secret(call, call.words[0], "may be read as BSD letters, where e is the environment")
    for word in call.values("-u"):
        text = word.value or ""
        if _WITH_E.match(text) and ("e" in text or parsed.has("-e")):
            _secret(call, word, "may be read as BSD letters, where e is the environment")


def _secret(call: Call, word: Word, detail: str) -> None:
    call.effect(ROLES["secret"], f"{call.id}.environment", word.span, detail=detail, secret=True)
