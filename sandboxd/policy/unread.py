# SPDX-License-Identifier: GPL-3.0-or-later
"""What the characters of a text still tell that nobody could parse. Each word is looked at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What makes a function that starts itself twice: `f() {`, `f | f &`, and the `}` that ends what was begun.
_BOMB = re.compile(
    r"(?P<ends>\})|(?<![^\s(){};&|])(?P<word>[^\s(){};&|]+)(?:\s*\(\)\s*[{(]|\s*\|\s*(?P<again>[^\s(){};&|]+)\s*&)"
)
# A word with a group of an extended glob, as far as one name is long.
_GROUP = re.compile(r"[@?*+!]\([^()\s]{0,255}\)")
_EXTENDED = re.compile(rf"[^\s;&|<>()'\"]{{0,255}}{_GROUP.pattern}[^\s;&|<>()'\"]{{0,255}}")


def is_bomb(text: str) -> bool:
    """Whether a function that is begun pipes itself into itself, in the background."""
    begun: set[str] = set()
    for match in _BOMB.finditer(text):
        if match["ends"]:
            begun.clear()
        elif match["again"] is None:
            begun.add(match["word"])
        elif match["again"] in begun and match["word"].endswith(match["again"]):
            return True
    return False


def extended(text: str) -> Iterator[tuple[str, str]]:
    """The words that hold extended globs, where the text says that there may be any, each with a plain glob that is wider."""
    for word in _EXTENDED.findall(text) if "extglob" in text else ():
        yield word, _GROUP.sub("*", word)
