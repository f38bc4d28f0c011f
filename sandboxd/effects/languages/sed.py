# SPDX-License-Identifier: GPL-3.0-or-later
"""sed scripts: which commands write (`w`, `W`, `s///w`), read (`r`, `R`) or run (`e`, `s///e`)."""

from __future__ import annotations

import re
from itertools import product
from math import prod

from sandboxd.effects.argv import literal
from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES
from sandboxd.model import Word

_NO_ARGUMENT = frozenset("=dDgGhHnNpPxzF")
_LABEL = frozenset(":btTv")
_NUMBER = frozenset("qQlL")
_FLAGS = frozenset("gpiImM0123456789")


_MAX_SCRIPTS = 32  # of one command: a loop variable in a script has several values


class NotSed(Exception):
    """The script is not one that can be read."""


def read(call: Call) -> None:
    """GNU sed 4.8 and before end an address or `s` at a delimiter inside brackets, later ones do not: both readings count."""
    parsed = call.parsed
    scripts = call.values("-e", "--expression")
    operands = parsed.operands
    if not scripts and not parsed.has("-f", "--file"):
        scripts, operands = operands[:1], operands[1:]
    in_place = parsed.has("-i", "--in-place")
    role = ROLES["path.edit"] if in_place else ROLES["path.read"]
    for word in operands:
        call.path(role, word, f"sed.{'in_place' if in_place else 'operand'}", word.span, edit=in_place)
    if call.appended:
        call.path(role, None, "sed.operand", call.span, edit=False)
    for given in parsed.given:
        if given.name_in(("-i",)) and given.value is not None and given.value.value is None:
            call.path(ROLES["path.write"], None, "sed.suffix", given.span)
    if not scripts:
        return
    unknown = next((script for script in scripts if not script.values), None)
    if unknown is not None or prod([len(script.values) for script in scripts]) > _MAX_SCRIPTS:
        call.opaque("opaque.dynamic_code", "sed.script", (unknown or scripts[0]).span, "sed", call.mentions(True))
        return
    for texts in product(*[script.values for script in scripts]):
        _script(call, scripts, "\n".join(texts), in_place)


def _script(call: Call, scripts: list[Word], joined: str, in_place: bool) -> None:
    try:
        found = actions(joined, brackets=True)
    except NotSed as error:
        call.opaque("opaque.code", "sed.script", scripts[0].span, str(error), call.mentions(True))
        return
    if "[" in joined:
        try:
            found = (*found, *(action for action in actions(joined, brackets=False) if action not in found))
        except NotSed:
            pass  # not a script in that reading: sed refuses it before it does anything
    for name, argument in found:
        _act(call, scripts[0], name, argument, in_place)


def _act(call: Call, word: Word, name: str, argument: str, in_place: bool) -> None:
    if name in "rR":
        if argument != "/dev/stdin":
            call.named(ROLES["path.read"], argument, f"sed.{name}", word.span)
    elif name in "wW":
        if argument not in ("/dev/stdout", "/dev/stderr"):
            call.named(ROLES["path.write"], argument, f"sed.{name}", word.span, edit=in_place)
    elif argument:
        call.code(literal(argument, word.span), "sed e", "sed.e")
    else:
        call.opaque("opaque.code", "sed.e", word.span, "runs the pattern space as a command", call.mentions(True))


def actions(script: str, brackets: bool) -> tuple[tuple[str, str], ...]:
    """The commands of a script that reach beyond the stream: (`r`, file), (`w`, file), (`e`, command or "").

    Raises NotSed when the script cannot be read for certain.
    """
    return () if _BY_NUMBER.fullmatch(script) else tuple(_Script(script, brackets).run())


# `10,60p`: the commonest script of all needs no scanner.
_BY_NUMBER = re.compile(r"(?:[0-9]+|\$)(?:,(?:[0-9]+|\$))?[pdq=]")


class _Script:
    def __init__(self, text: str, brackets: bool) -> None:
        self.text = text
        self.at = 0
        self.brackets = brackets
        self.found: list[tuple[str, str]] = []

    def run(self) -> list[tuple[str, str]]:
        while True:
            self._skip(" \t\n;")
            if self.at >= len(self.text):
                return self.found
            if self._peek() == "#":
                self._line()
                continue
            self._addresses()
            self._skip(" \t")
            while self._peek() == "!":
                self.at += 1
                self._skip(" \t!")
            self._command()

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self, chars: str) -> None:
        text, end = self.text, len(self.text)
        while self.at < end and text[self.at] in chars:
            self.at += 1

    def _line(self) -> str:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        line, self.at = self.text[self.at : end], end
        return line

    def _addresses(self) -> None:
        if not self._address():
            return
        self._skip(" \t")
        if self._peek() == ",":
            self.at += 1
            self._skip(" \t")
            if self._peek() in ("+", "~"):
                self.at += 1
            if not self._address():
                raise NotSed("an address is missing")

    def _address(self) -> bool:
        char = self._peek()
        if char.isdecimal():
            self._digits()
            self._skip(" \t")
            if self._peek() == "~":
                self.at += 1
                self._digits()
            return True
        if char == "$":
            self.at += 1
            return True
        if char == "\\":
            self.at += 1
            self._delimited(self._delimiter(), regex=True)
        elif char == "/":
            self.at += 1
            self._delimited("/", regex=True)
        else:
            return False
        self._skip("IM")
        return True

    def _digits(self) -> None:
        while self._peek().isdecimal():
            self.at += 1

    def _delimiter(self) -> str:
        char = self._peek()
        if not char or char in "\n\\":
            raise NotSed("a delimiter is missing")
        self.at += 1
        return char

    def _delimited(self, end: str, regex: bool) -> str:
        """The text up to the delimiter; the position is then behind it."""
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self.at += 2
            elif char == end:
                self.at += 1
                return self.text[start : self.at - 1]
            elif char == "[" and regex and self.brackets:
                self._bracket()
            elif char == "\n" and regex:
                raise NotSed("a regular expression is not ended")
            else:
                self.at += 1
        raise NotSed("a delimiter is missing")

    def _bracket(self) -> None:
        at = self.at + 1
        if self.text[at : at + 1] == "^":
            at += 1
        if self.text[at : at + 1] == "]":
            at += 1
        while at < len(self.text) and self.text[at] not in "]\n":
            kind = self.text[at + 1 : at + 2]
            if self.text[at] == "[" and kind and kind in ":.=":
                end = self.text.find(kind + "]", at + 2)
                if end < 0:
                    raise NotSed("a bracket expression is not ended")
                at = end + 2
            else:
                at += 1
        if self.text[at : at + 1] != "]":
            raise NotSed("a bracket expression is not ended")
        self.at = at + 1

    def _command(self) -> None:
        name = self._peek()
        self.at += 1
        if not name:
            raise NotSed("a command is missing")
        if name in "{}":
            if name == "}":
                self._end()
            return
        if name in _NO_ARGUMENT:
            self._end()
        elif name in "aic":
            self._text()
        elif name in _LABEL:
            # Where a label ends differs between versions: at the first of these in the newest, and what follows is a command.
            self._skip(" \t")
            while self._peek() and self._peek() not in " \t\n;}":
                self.at += 1
        elif name in _NUMBER:
            self._skip(" \t")
            self._digits()
            self._end()
        elif name == "y":
            end = self._delimiter()
            self._delimited(end, regex=False)
            self._delimited(end, regex=False)
            self._end()
        elif name == "s":
            self._substitute()
        elif name in "rRwW":
            self._skip(" \t")
            argument = self._line()
            if not argument:
                raise NotSed("a file name is missing")
            self.found.append((name, argument))
        elif name == "e":
            self._skip(" \t")
            self.found.append(("e", self._line()))
        else:
            raise NotSed(f"unknown command `{name}`")

    def _text(self) -> None:
        """Text of a, i, c: to the end of the line, and on while lines end in a backslash."""
        while True:
            line = self._line()
            slashes = len(line) - len(line.rstrip("\\"))
            if slashes % 2 == 0 or self.at >= len(self.text):
                return
            self.at += 1

    def _substitute(self) -> None:
        end = self._delimiter()
        self._delimited(end, regex=True)
        self._delimited(end, regex=False)
        while True:
            flag = self._peek()
            if flag == "w":
                self.at += 1
                self._skip(" \t")
                argument = self._line()
                if not argument:
                    raise NotSed("a file name is missing")
                self.found.append(("w", argument))
                return
            if flag == "e":
                self.found.append(("e", ""))
            elif not flag or flag not in _FLAGS:
                break
            self.at += 1
        self._end()

    def _end(self) -> None:
        self._skip(" \t")
        char = self._peek()
        if char and char not in "\n;}#":
            raise NotSed(f"`{char}` after a command")
