# SPDX-License-Identifier: GPL-3.0-or-later
"""Builtins of bash that change what the rest of the line means: variables, options, functions, the shell itself."""

from __future__ import annotations

import re

from sandboxd.effects.argv import cut, splits
from sandboxd.effects.call import Call, Nested
from sandboxd.effects.roles import ROLES
from sandboxd.effects.targets import fragments
from sandboxd.model import PartKind, Word, WordFlag

# Options of set and shopt that leave what the text means alone.
_SET_LETTERS = frozenset("euxvfCBhmbEn")
_SET_NAMES = frozenset(
    [
        "errexit",
        "nounset",
        "pipefail",
        "xtrace",
        "verbose",
        "noglob",
        "noclobber",
        "braceexpand",
        "hashall",
        "errtrace",
        "monitor",
        "notify",
        "emacs",
        "vi",
        "nolog",
        "ignoreeof",
    ]
)
_SHOPT_NAMES = frozenset(
    [
        "globstar",
        "nullglob",
        "dotglob",
        "failglob",
        "nocaseglob",
        "nocasematch",
        "lastpipe",
        "inherit_errexit",
        "checkwinsize",
        "cmdhist",
    ]
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_EXPANDS = re.compile(r"[$`\[<>]")


def read(call: Call) -> None:
    _READERS[call.name](call)


def _env(call: Call, word: Word, name: str) -> None:
    call.effect(ROLES["env"], f"{call.id}.name", word.span, name)


def _refuse(call: Call, word: Word, name: str, code: str = "env.unlisted") -> None:
    call.clean = False
    call.opaque(code, f"{call.id}.{name or 'name'}", word.span, name, fragments(word, call.place))


def _name_of(word: Word) -> str:
    text = word.value if word.value is not None else word.prefix
    return text.partition("=")[0].removesuffix("+")


def _declared(call: Call) -> None:
    """export, readonly, declare, local, typeset: an exported variable reaches every program of the line."""
    parsed = call.parsed
    operands = parsed.operands
    exported = call.name == "export" or parsed.has("-x")
    if not operands:
        if not parsed.has("-f", "-F") and call.name != "local":
            call.effect(ROLES["secret"], f"{call.id}.print", call.span, detail="the environment", secret=True)
        return
    for word in operands:
        name = _name_of(word)
        text = word.value if word.value is not None else word.prefix
        assigns = "=" in text
        if splits(word) or _NAME.match(name) is None or (assigns and call.name != "export" and _is_list(call, word)):
            _refuse(call, word, name, "shell.names_evaluated")
        elif parsed.has("-p"):
            if not call.environment.readable(name):
                call.effect(ROLES["secret"], f"{call.id}.print", word.span, detail=name, secret=True)
        elif (exported and not call.environment.harmless(name, cut(word, text.index("=") + 1) if assigns else None)) or (
            not exported and not call.environment.ordinary(name)
        ):
            _refuse(call, word, name)
        else:
            _env(call, word, name)


def _is_list(call: Call, word: Word) -> bool:
    """Whether a value that is not written as a list may be read as one, with all that stands in it expanded: bash does so
    where the name is an array's (`declare -a 'x=($(ls))'`, or declared so before)."""
    first = word.parts[0]
    if first.kind is PartKind.LITERAL and not first.quoted and "=(" in first.text:
        return False
    if not word.values:
        value = word.prefix.partition("=")[2]
        return value.startswith("(") or (not value and (call.parsed.has("-a", "-A") or call.name in ("declare", "typeset")))
    values = (text.partition("=")[2] for text in word.values)
    return any(value.startswith("(") and _EXPANDS.search(value) for value in values)


def _unset(call: Call) -> None:
    for word in call.parsed.operands:
        name = word.value or ""
        if _NAME.match(name) is None or not call.environment.ordinary(name):
            _refuse(call, word, name or word.prefix)
        else:
            _env(call, word, name)


def _names(call: Call) -> None:
    """read, mapfile, getopts: operands are names of variables; a subscript in one is evaluated."""
    for word in (*call.parsed.operands[1 if call.name == "getopts" else 0 :], *call.values("-a")):
        name = word.value or ""
        if _NAME.match(name) is None:
            _refuse(call, word, name or word.prefix, "shell.names_evaluated")
        elif not call.environment.ordinary(name):
            _refuse(call, word, name)
        else:
            _env(call, word, name)


def _set(call: Call) -> None:
    """Read by hand: `set -euo pipefail`, `set +x`, `set -- words`."""
    words = list(call.words[1:])
    if not words:
        call.effect(ROLES["secret"], "set.print", call.span, detail="all variables", secret=True)
    while words:
        word = words.pop(0)
        text = word.value
        if text is None or (text[:1] in ("-", "+") and "a" in text and not text.startswith("--")):
            if text is None and word.prefix[:1] not in ("", "-", "+") and not splits(word):
                return  # positional parameters
            _refuse(call, word, text or "", "shell.option")
        elif text in ("--", "-") or text[:1] not in ("-", "+"):
            return
        else:
            for letter in text[1:]:
                if letter == "o":
                    name = words.pop(0).value if words else None
                    if name is not None and name not in _SET_NAMES:
                        _refuse(call, word, name, "shell.option")
                elif letter not in _SET_LETTERS:
                    _refuse(call, word, letter, "shell.option")
            _env(call, word, text)


def _shopt(call: Call) -> None:
    if not call.parsed.has("-s", "-u"):
        return
    for word in call.parsed.operands:
        known = _SET_NAMES if call.parsed.has("-o") else _SHOPT_NAMES
        if word.value not in known:
            _refuse(call, word, word.value or word.prefix, "shell.option")
        else:
            _env(call, word, word.value)


def _command(call: Call) -> None:
    """`command -v x` looks a name up; `command x` runs it, past functions."""
    if not call.parsed.has("-v", "-V"):
        call.nest(tuple(call.parsed.operands), "command", appended=call.appended, harmless=True)


def _exec(call: Call) -> None:
    if call.parsed.has("-c"):
        # What protects a run is environment too (env -i).
        call.clean = False
        call.opaque("env.unlisted", "exec.-c", call.span, "an empty environment", call.mentions())
    if call.parsed.operands:
        call.nest(tuple(call.parsed.operands), "exec", appended=call.appended)


def _eval(call: Call) -> None:
    """Known words are read as the text they make; anything else can be any text."""
    words = call.words[1:]
    if words and words[0].value == "--":
        words = words[1:]
    if call.appended or any(word.value is None for word in words):
        call.opaque("shell.eval", "eval.text", call.span, "", call.mentions())
    elif words:
        text = " ".join(word.value or "" for word in words)
        call.nested.append(Nested("eval", words[0].span, call.place.cwds, text=text))


def _trap(call: Call) -> None:
    """The text is run later, in whatever state the shell is in by then: what it names is evidence."""
    words = [word for word in call.words[1:] if word.value != "--"]
    if words and words[0].value not in (None, "-", ""):
        call.nested.append(Nested("trap", words[0].span, None, text=words[0].value))


def _printenv(call: Call) -> None:
    operands = call.parsed.operands
    for word in operands:
        if word.value is None or not call.environment.readable(word.value):
            call.effect(ROLES["secret"], "printenv.name", word.span, detail=word.value or "", secret=True)
    if not operands:
        call.effect(ROLES["secret"], "printenv.all", call.span, detail="the environment", secret=True)


def _kill(call: Call) -> None:
    """`kill -0 PID` sends nothing, as long as no later word names another signal."""
    words = call.words[1:]
    if words and words[0].value == "-0" and all(map(_no_option, words[1:])):
        return
    for word in words:
        call.effect(ROLES["process.signal"], f"{call.id}.operand", word.span, word.value)


def _no_option(word: Word) -> bool:
    if word.values:
        return all(value[:1] != "-" for value in word.values)
    return WordFlag.PLAIN in word.flags


_READERS = {
    "export": _declared,
    "readonly": _declared,
    "declare": _declared,
    "typeset": _declared,
    "local": _declared,
    "unset": _unset,
    "read": _names,
    "mapfile": _names,
    "readarray": _names,
    "getopts": _names,
    "set": _set,
    "shopt": _shopt,
    "command": _command,
    "exec": _exec,
    "eval": _eval,
    "printenv": _printenv,
    "trap": _trap,
    "kill": _kill,
}
