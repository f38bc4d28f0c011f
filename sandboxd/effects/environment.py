# SPDX-License-Identifier: GPL-3.0-or-later
"""Which variables may be set before a command, and which a line may assign to itself (data/env.toml).

Unlisted is never harmless: a variable in front of a command must be on the allow-list, with a value that is known where
the value matters. A bare assignment stays in the shell unless the name is special to bash or already exported.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sandboxd.errors import TableError
from sandboxd.model import Word

_PLAIN = re.compile(r"[A-Za-z0-9_.@:,+=-]*\Z")
_ZONE = re.compile(r"[A-Z][A-Za-z_]+(?:/[A-Z][A-Za-z_-]+){1,2}\Z")  # a file of the zone directory


@dataclass(frozen=True, slots=True)
class Environment:
    """`any`: any value; `plain`: names, numbers and lists without slash; `values`: exactly these; `special`: never bare."""

    any: re.Pattern[str]
    plain: re.Pattern[str]
    values: Mapping[str, frozenset[str]]
    special: re.Pattern[str]
    quiet: frozenset[str]

    def harmless(self, name: str, value: Word | None) -> bool:
        """Whether `name=value` in front of a command changes nothing but how it looks."""
        if self.any.match(name):
            return True
        text = None if value is None else value.value
        if text is None:
            return False
        if self.plain.match(name):
            return _PLAIN.match(text) is not None or (name == "TZ" and _ZONE.match(text) is not None)
        return text in self.values.get(name, ())

    def ordinary(self, name: str) -> bool:
        """Whether the shell may set this variable for itself without any program seeing it or bash acting on it."""
        return self.special.match(name) is None

    def readable(self, name: str) -> bool:
        """Whether printing this variable shows no secret."""
        return name in self.quiet or self.any.match(name) is not None or self.plain.match(name) is not None


def parse_environment(text: str, origin: str) -> Environment:
    """The environment rules in `text`. Raises TableError."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
        return Environment(
            any=_globs(data["any"].split()),
            plain=_globs(data["plain"].split()),
            values={name: frozenset(values) for name, values in data["values"].items()},
            special=_globs(data["special"].split()),
            quiet=frozenset(data["readable"].split()),
        )
    except (tomllib.TOMLDecodeError, KeyError, AttributeError, TypeError) as error:
        raise TableError(f"wrong environment table: {error!r}", origin=origin) from error


def _globs(names: Iterable[str]) -> re.Pattern[str]:
    pieces = (re.escape(name).replace(r"\*", "[A-Za-z0-9_]*") for name in names)
    return re.compile(f"(?:{'|'.join(pieces)})\\Z")
