# SPDX-License-Identifier: GPL-3.0-or-later
"""Program text of interpreters: which protected path it seems to change, by the names that languages have for changing files.

Evidence, not understanding: the text names a protected path in quotes, and calls what changes files on it, or on something
that is not literal. Text that only reads or prints the path is none.

To add a way of changing files: its name in _ALTERS, rows for it and for a reading neighbour in tests/corpus/policy_touch.jsonl.
"""

from __future__ import annotations

import re

from sandboxd.policy.gittouch import is_protected

INTERPRETERS = re.compile(
    r"(?:python|pypy|perl|ruby|php|lua|node)[0-9.]*|nodejs|luajit|deno|bun|osascript|tclsh[0-9.]*|[gmn]?awk|jruby|raku|ipython3?|irb"
)
_QUOTED = re.compile(r"\"([^\"\\\n]{1,300})\"|'([^'\\\n]{1,300})'|`([^`\\\n]{1,300})`")
# A mode that writes, behind what is opened.
_OPENS = re.compile(
    r"\bopen\w*\s*[( ]\s*((?:(?!\bopen)[^;\n]){0,300}?),\s*(?:mode\s*=\s*)?"
    r"[\"'](?:[wax][bt]?\+?[bt]?|[rb]{1,2}\+b?|\+?>{1,2}[^\"'\n]*|\+<)[\"']([^;\n)]{0,200})"
)
_OPENERS = frozenset(("open", "openSync", "fopen"))
_MODES = frozenset(("w", "a", "x", "wb", "ab", "w+", "a+", "r+", "rb+", "r+b", "wt", "at", "wx"))
_PERL_OPEN = re.compile(r"\bopen\b[^;\n]{0,100}?[\"']\s*\+?>{1,2}\s*([^\"'\n]+)[\"']")
_ALTERS = re.compile(
    r"\b(unlink|remove|rmtree|removedirs|rmdir|rm|rename|write(?:_text|_bytes|File|TextFile)|append(?:File|TextFile)|createWriteStream"
    r"|symlink|link|truncate|chmod|chown|touch|mkdir|makedirs|file_put_contents|File\.(?:write|delete|rename)|IO\.write|Bun\.write"
    r"|FileUtils\.\w+|rm_rf|rm_f|rm_r|file\s+(?:delete|rename|mkdir))(?:_to|Sync)?\b\s*[( ]\s*([^;\n]{0,300})"
)
_COPIES = re.compile(
    r"\b(?:copy\w*|cp|move|os\.replace|rename\w*|link\w*|symlink\w*)\s*\([^,;\n]{0,200},\s*[\"']([^\"'\n]+)[\"']"
)
_PRINTS_INTO = re.compile(r"\bprintf?\b[^;}\n<]{0,200}>{1,2}[ \t]*(\"[^\"\n]+\"|[A-Za-z_]\w*)")


def changes(text: str) -> str | None:
    """The protected path that program text of an interpreter seems to change."""
    quoted = _protected(text)
    if quoted is None:
        return None
    for match in _COPIES.finditer(text):
        if _named(match[1]):
            return match[1]
    for match in _PERL_OPEN.finditer(text):
        if _named(match[1].strip()):
            return match[1].strip()
    for match in _OPENS.finditer(text):
        found = _protected(match[1]) or _protected(match[2])
        if found is not None or not _QUOTED.search(match[1]):
            return found or quoted
    for match in _PRINTS_INTO.finditer(text):
        found = _protected(match[1])
        if found is not None or not match[1].startswith('"'):
            return found or quoted
    for match in _ALTERS.finditer(text):
        # What the method is called on stands before it in the same statement.
        begin = max(text.rfind(";", 0, match.start()), text.rfind("\n", 0, match.start())) + 1
        before = text[begin : match.start()] if text[match.start() - 1 : match.start()] == "." else ""
        found = _protected(match[2]) or _protected(before)
        if found is not None:
            return found
        if not _QUOTED.search(match[2]):
            return quoted
    return None


def feeds(tokens: tuple[str, ...]) -> str | None:
    """Likewise of program text that comes in by standard input, of which the tokens are left."""
    path = next(filter(is_protected, tokens), None)
    if path is None:
        return None
    called = {token.rpartition(".")[2] for token in tokens}
    opened = not called.isdisjoint(_OPENERS) and not _MODES.isdisjoint(tokens)
    return path if opened or any(_ALTERS.match(f"{name}(") for name in called) else None


def _protected(text: str) -> str | None:
    for match in _QUOTED.finditer(text):
        word = match[1] or match[2] or match[3]
        if _named(word):
            return word
    return None


def _named(word: str) -> bool:
    return " " not in word and is_protected(word.removeprefix("~"))
