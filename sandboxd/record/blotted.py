# SPDX-License-Identifier: GPL-3.0-or-later
"""A command's text without its secrets, and what was made of that text without them too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from sandboxd.model import Span
from sandboxd.redact import redact

_MARK = re.compile(r"\[redacted:[a-z_]+\]")


class Blotted:
    """A text and what `redact` made of it, so that what was taken from the text can be blotted out and found again."""

    def __init__(self, text: str, secrets: tuple[str, ...] = ()) -> None:
        self._before = text
        self._secrets = secrets
        self.text = redact(text, secrets)
        self.changed = self.text != text

    @cached_property
    def _gone(self) -> tuple[tuple[Span, int], ...] | None:
        """Where something was blotted out, and how long its mark is; None when that cannot be told for certain."""
        out: list[tuple[Span, int]] = []
        kept = _MARK.split(self.text)
        marks = _MARK.findall(self.text)
        if not self._before.startswith(kept[0]):
            return None
        at = len(kept[0])
        for number, (mark, rest) in enumerate(zip(marks, kept[1:], strict=True), 2):
            last = number == len(kept)
            after = len(self._before) - len(rest) if last else self._before.find(rest, at + 1)
            if after < at or not self._before.startswith(rest, after) or not (rest or last):
                return None
            out.append((Span(at, after), len(mark)))
            at = after + len(rest)
        return tuple(out)

    def span(self, span: Span) -> Span | None:
        """Where a piece of the text stands now; None for one that begins or ends inside a secret, and where nobody knows."""
        if not self.changed:
            return span
        if self._gone is None:
            return None
        shift = grown = 0
        for (start, end), mark in self._gone:
            if start < span.start < end or start < span.end < end:
                return None
            if end <= span.start:
                shift += mark - (end - start)
            elif end <= span.end:
                grown += mark - (end - start)
        return Span(span.start + shift, span.end + shift + grown)

    @cached_property
    def _known(self) -> tuple[str, ...]:
        """The secrets that are known by now."""
        gone = self._gone or ()
        return (*self._secrets, *(self._before[start:end] for (start, end), _ in gone))

    def piece(self, text: str) -> str:
        """Something made of the text, without what was blotted out of it. Nothing of it where that cannot be told."""
        if not self.changed:
            return text
        return "[redacted:piece]" if self._gone is None else redact(text, self._known)

    def words(self, argv: Iterable[str | None]) -> tuple[str | None, ...]:
        """The words of a command, each seen behind the one before it: what stands behind `--password` is a secret."""
        if not self.changed:
            return tuple(argv)
        out: list[str | None] = []
        before = ""
        for word in argv:
            if word is None:
                out.append(None)
                before = ""
                continue
            lead = f"{before} "
            pair = redact(lead + word, self._secrets) if before else ""
            out.append(self.piece(pair[len(lead) :] if pair.startswith(lead) else word))
            before = word
        return tuple(out)
