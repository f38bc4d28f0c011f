# SPDX-License-Identifier: GPL-3.0-or-later
"""What a shell glob can match, without a disk: `*`, `?`, `[…]`, backslash escapes, and `**` for any number of path components.

The question asked here is never "does it match" alone but "can the two have a name in common": a deny rule and the
killswitch must see `cat ~/.s*/id_*` as a read of `~/.ssh/id_rsa`. Where that cannot be told (two character classes,
a named class), the answer is yes. Every function is linear in the product of the two lengths.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_SPECIAL = frozenset("*?[")


class _Class(NamedTuple):
    """A bracket expression. `anything` is set when it holds a named class and so is not judged."""

    negated: bool
    ranges: tuple[tuple[str, str], ...]
    anything: bool = False

    def holds(self, char: str) -> bool:
        return self.anything or self.negated is not any(low <= char <= high for low, high in self.ranges)


class _Any:
    """`?`: one character."""


class _Star:
    """`*`: any number of characters."""


_ANY = _Any()
_STAR = _Star()
_Token = str | _Class | _Any | _Star


def is_glob(text: str) -> bool:
    """Whether `text` holds a character that can make it a pattern."""
    return not _SPECIAL.isdisjoint(text)


@lru_cache(maxsize=4096)
def _tokens(glob: str) -> tuple[_Token, ...]:
    out: list[_Token] = []
    at = 0
    while at < len(glob):
        char = glob[at]
        if char == "\\" and at + 1 < len(glob):
            out.append(glob[at + 1])
            at += 2
            continue
        if char == "[":
            bracket = _bracket(glob, at)
            if bracket is not None:
                token, at = bracket
                out.append(token)
                continue
        if char == "*":
            if not out or out[-1] is not _STAR:
                out.append(_STAR)
        else:
            out.append(_ANY if char == "?" else char)
        at += 1
    return tuple(out)


def _bracket(glob: str, start: int) -> tuple[_Class, int] | None:
    """The bracket expression at `start` and the offset after it; None when it is not closed (then `[` is a literal)."""
    at = start + 1
    negated = at < len(glob) and glob[at] in "!^"
    at += negated
    first, anything = at, False
    ranges: list[tuple[str, str]] = []
    while at < len(glob):
        char = glob[at]
        if char == "]" and at > first:
            return _Class(negated, tuple(ranges), anything), at + 1
        if char == "[" and glob[at + 1 : at + 2] in (":", ".", "="):
            end = glob.find(glob[at + 1] + "]", at + 2)
            if end < 0:
                return None
            anything, at = True, end + 2
            continue
        if char == "\\" and at + 1 < len(glob):
            at += 1
            char = glob[at]
        if glob[at + 1 : at + 2] == "-" and glob[at + 2 : at + 3] not in ("", "]"):
            ranges.append((char, glob[at + 2]))
            at += 3
        else:
            ranges.append((char, char))
            at += 1
    return None


def _meet(one: _Token, other: _Token) -> bool:
    if isinstance(one, str):
        if isinstance(other, str):
            return one == other
        return not isinstance(other, _Class) or other.holds(one)
    return one.holds(other) if isinstance(one, _Class) and isinstance(other, str) else True


def _apart(one: _Token, other: _Token) -> bool:
    """Whether two tokens are different characters: at one end of two globs that is the end of it."""
    return type(one) is str and type(other) is str and one != other


@lru_cache(maxsize=4096)
def overlaps(glob: str, other: str, dots: bool = True) -> bool:
    """Whether one file name can match both one-component globs (a plain name is a glob that matches itself).

    With `dots` False a leading `*`, `?` or `[!x]` of `glob` does not match a leading dot, as in bash without `dotglob`.
    """
    left, right = _tokens(glob), _tokens(other)
    if left and right and (_apart(left[0], right[0]) or _apart(left[-1], right[-1])):
        return False
    if (_STAR not in right and len(left) - left.count(_STAR) > len(right)) or (
        _STAR not in left and len(right) - right.count(_STAR) > len(left)
    ):
        return False
    if not dots and left and right and right[0] == ".":
        first = left[0]
        if first is _STAR:
            left = left[1:]
        elif first is _ANY or (isinstance(first, _Class) and (first.negated or first.anything)):
            return False
    width = len(right)
    # row[j]: can left[i:] and right[j:] match one text; filled from the ends backwards.
    row = [False] * width + [True]
    for j in range(width - 1, -1, -1):
        row[j] = right[j] is _STAR and row[j + 1]
    for token in reversed(left):
        below, row = row, [False] * (width + 1)
        row[width] = token is _STAR and below[width]
        for j in range(width - 1, -1, -1):
            if token is _STAR or right[j] is _STAR:
                row[j] = below[j] or row[j + 1]
            else:
                row[j] = below[j + 1] and _meet(token, right[j])
    return row[0]


def path_overlaps(glob: str, other: str, dots: bool = True) -> bool:
    """Whether one absolute path can match both path globs; `**` spans any number of components, none included."""
    left, right = glob.strip("/").split("/"), other.strip("/").split("/")
    at, shorter = 0, min(len(left), len(right))
    while at < shorter and left[at] != "**" and right[at] != "**":  # up to there each meets the one in its place
        if left[at] != right[at] and not overlaps(left[at], right[at], dots):
            return False
        at += 1
    left, right = left[at:], right[at:]
    width = len(right)
    row = [False] * width + [True]
    for j in range(width - 1, -1, -1):
        row[j] = right[j] == "**" and row[j + 1]
    for piece in reversed(left):
        below, row = row, [False] * (width + 1)
        row[width] = piece == "**" and below[width]
        for j in range(width - 1, -1, -1):
            if piece == "**" or right[j] == "**":
                row[j] = below[j] or row[j + 1]
            else:
                row[j] = below[j + 1] and (piece == right[j] or overlaps(piece, right[j], dots))
    return row[0]


@lru_cache(maxsize=1024)
def literal_prefix(glob: str) -> str:
    """The leading components of a path glob that hold no pattern: `/a/b/*.py` gives `/a/b`, `/*` gives `/`."""
    out: list[str] = []
    for piece in glob.split("/"):
        if is_glob(piece):
            break
        out.append(piece)
    return "/".join(out) or "/"


def literals(glob: str) -> str:
    """The characters of a one-component glob that stand for themselves, in order."""
    return "".join(token for token in _tokens(glob) if isinstance(token, str))
