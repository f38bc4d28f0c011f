# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes to the terminal: colours, tables, JSON, and a filter for what commands print."""

from __future__ import annotations

import codecs
import dataclasses
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, TextIO

from sandboxd.consult.prompt import escape_for_prompt
from sandboxd.model import Analysis, AnalyzedCommand, Effect

RED, GREEN, YELLOW, MAGENTA, CYAN, BOLD, DIM, UNDERLINE = "31", "32", "33", "35", "36", "1", "2", "4"

VERDICT_COLOURS = {"allow": GREEN, "ask": YELLOW, "deny": RED}


def colourful(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: a terminal, and neither NO_COLOR (no-color.org) nor a dumb one."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, *codes: str, on: bool) -> str:
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if on and codes else text


def shown(text: str, limit: int = 200) -> str:
    """Text of somebody else's making on one line, nothing hidden in it."""
    return escape_for_prompt(text, limit=limit, newline="⏎")


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Left-aligned columns, two spaces apart; the last one is not padded. Widths count characters as terminals do."""
    lines = [list(head), *map(list, rows)] if head else [list(row) for row in rows]
    if not lines:
        return ""
    columns = [max(_width(line[number]) for line in lines) for number in range(len(lines[0]))]
    out = []
    for line in lines:
        cells = [cell + " " * (width - _width(cell)) for cell, width in zip(line, columns, strict=True)]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out)


def _width(text: str) -> int:
    plain = _SGR.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in plain)


def plain(value: Any) -> Any:
    """A model value as JSON can hold it: enums by value, dataclasses by field, bytes as text."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Effect | AnalyzedCommand | Analysis):
        return {name: plain(field) for name, field in value._asdict().items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [plain(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """One JSON document on standard output, on one line."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False) + "\n")
    sys.stdout.flush()


_SGR = re.compile(r"\x1b\[[0-9;:]*m")
# A colour sequence, or a control character (C0 but tab, line feed, carriage return, backspace; DEL; C1).
_CONTROL = re.compile(r"(\x1b\[[0-9;:]*m)|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,60})?$")
# For a program that was given the terminal: it may draw. What makes a terminal answer (as if somebody typed), print, or
# do something outside its own screen is still shown: reports (c, n, t, x, $p), media copy (i), every string (OSC, DCS …).
_SCREEN = re.compile(
    r"(\x1b\[[0-?]*[@-bd-hj-mo-su-wyz]|\x1b\[[0-?]* q|\x1b[()][0AB]|\x1b[=>78DEHM])"
    r"|[\x00-\x06\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
_SCREEN_UNFINISHED = re.compile(r"\x1b(\[[0-?]{0,60} ?|[()])?$")
_MODE = re.compile(r"\x1b\[\?([0-9;]+)([hl])$")
_ON_AT_FIRST = ("7", "25")  # private modes that a terminal starts with: wrap lines, show the cursor


class Filter:
    """What a command prints, made fit for a terminal: colours pass, every other control sequence is shown, not obeyed.

    So no output can move the cursor up, clear the screen, set the clipboard (OSC 52) or forge a prompt of ours.
    Feed it chunks as they come; sequences and characters may be cut anywhere. With `screen` the program may also draw,
    for the time that it runs: whatever mode it leaves behind is put back at the end.
    """

    def __init__(self, *, screen: bool = False) -> None:
        self._known, self._cut = (_SCREEN, _SCREEN_UNFINISHED) if screen else (_CONTROL, _UNFINISHED)
        self._modes: dict[str, str] = {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        self._coloured = False

    def feed(self, data: bytes, *, final: bool = False) -> str:
        text = self._held + self._decoder.decode(data, final)
        unfinished = None if final else self._cut.search(text)
        self._held = text[unfinished.start() :] if unfinished else ""
        if unfinished:
            text = text[: unfinished.start()]
        out = self._known.sub(self._replace, text)
        if final:
            out += "".join(f"\x1b[?{number}{'h' if number in _ON_AT_FIRST else 'l'}" for number in sorted(self._modes))
            self._modes.clear()
        if final and self._coloured:
            self._coloured = False
            out += "\x1b[0m"
        return out

    def _replace(self, match: re.Match[str]) -> str:
        if match[1]:
            self._coloured = True
            if mode := _MODE.match(match[1]):
                for number in filter(None, mode[1].split(";")):
                    if (mode[2] == "h") == (number in _ON_AT_FIRST):
                        self._modes.pop(number, None)
                    else:
                        self._modes[number] = mode[2]
            return match[1]
        return f"\\x{ord(match[0]):02x}"
