# SPDX-License-Identifier: GPL-3.0-or-later
"""TOML text with line numbers: the standard parser gives values, this adds where each key stands, for error messages."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from sandboxd.errors import ConfigError

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?")
_KEY = re.compile(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_PIECE = re.compile(r"[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'")
_DECODE_LINE = re.compile(r"at line (\d+)")

KeyPath = tuple[str | int, ...]


class TomlText:
    """A parsed TOML document: `data`, and `where(path)` for `file:line`.

    Raises `error` (a ConfigError class) with file:line when the text is not TOML.
    """

    def __init__(self, text: str, origin: str, error: type[ConfigError] = ConfigError) -> None:
        self._origin = origin
        self._error = error
        self._text = text
        self._lines: dict[KeyPath, int] | None = None
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            found = _DECODE_LINE.search(str(exc))
            where = f"{origin}:{found.group(1)}" if found else origin
            raise error(f"not valid TOML: {exc}", origin=where) from None

    def where(self, *path: str | int) -> str:
        """`file:line` of the nearest known ancestor of a key path, e.g. `where("rule", 0, "match")`."""
        if self._lines is None:
            self._lines = _key_lines(self._text)
        for length in range(len(path), 0, -1):
            line = self._lines.get(path[:length])
            if line is not None:
                return f"{self._origin}:{line}"
        return self._origin

    def fail(self, message: str, *path: str | int, fix: str = "") -> ConfigError:
        """The error for a wrong key, ready to raise."""
        return self._error(message, origin=self.where(*path), fix=fix)


def _pieces(dotted: str) -> tuple[str, ...]:
    return tuple(piece.strip("\"'") for piece in _PIECE.findall(dotted))


def _key_lines(text: str) -> dict[KeyPath, int]:
    """Line number of every table header and every key at the start of a line. Keys of inline tables are not listed."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    in_string = ""
    for number, line in enumerate(text.splitlines(), 1):
        if in_string:
            if in_string in line:
                in_string = ""
            continue
        header = _HEADER.match(line)
        key = _KEY.match(line)
        if header and not key:
            table = ()
            names = _pieces(header.group(2))
            for position, name in enumerate(names):
                table = (*table, name)
                if position == len(names) - 1 and header.group(1) == "[[":
                    counts[table] = counts.get(table, -1) + 1
                if table in counts:
                    table = (*table, counts[table])
            lines.setdefault(table, number)
        elif key:
            path: KeyPath = (*table, *_pieces(key.group(1)))
            lines.setdefault(path, number)
            rest = line[key.end() :]
            for quote in ('"""', "'''"):
                if rest.count(quote) == 1:
                    in_string = quote
    return lines
