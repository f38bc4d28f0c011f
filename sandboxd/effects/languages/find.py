# SPDX-License-Identifier: GPL-3.0-or-later
"""find: starting points, then an expression in which some primaries run, write or delete."""

from __future__ import annotations

import itertools
import re

from sandboxd.effects import selectors
from sandboxd.effects.argv import several, starts_plainly
from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES
from sandboxd.effects.targets import Target, escape, locate, resolve
from sandboxd.globs import overlaps
from sandboxd.model import Part, PartKind, Word, WordFlag

_NONE = frozenset(
    [
        "-print",
        "-print0",
        "-ls",
        "-prune",
        "-quit",
        "-empty",
        "-true",
        "-false",
        "-depth",
        "-d",
        "-mount",
        "-xdev",
        "-daystart",
        "-follow",
        "-nouser",
        "-nogroup",
        "-readable",
        "-writable",
        "-executable",
        "-noleaf",
        "-ignore_readdir_race",
        "-noignore_readdir_race",
        "-warn",
        "-nowarn",
        "-a",
        "-and",
        "-o",
        "-or",
        "-not",
        "!",
        "(",
        ")",
        ",",
        "-help",
        "--help",
        "-version",
        "--version",
    ]
)
_TEXT = frozenset(
    [
        "-name",
        "-iname",
        "-path",
        "-ipath",
        "-wholename",
        "-iwholename",
        "-regex",
        "-iregex",
        "-regextype",
        "-lname",
        "-ilname",
        "-type",
        "-xtype",
        "-size",
        "-perm",
        "-user",
        "-group",
        "-uid",
        "-gid",
        "-links",
        "-inum",
        "-maxdepth",
        "-mindepth",
        "-amin",
        "-atime",
        "-cmin",
        "-ctime",
        "-mmin",
        "-mtime",
        "-used",
        "-fstype",
        "-printf",
        "-context",
        "-flags",
        "-Bmin",
        "-Btime",
        "-mnewer",
        "-cnewer_none",
    ]
)
_REFERENCE = frozenset(("-newer", "-anewer", "-cnewer", "-samefile"))
_WRITES = frozenset(("-fprint", "-fprint0", "-fls"))
_RUNS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_ACTIONS = (*_WRITES, *_RUNS, "-fprintf", "-delete", "-files0-from")
_NEWER = re.compile(r"-newer[aBcm][aBcmt]\Z")
_NAMES = frozenset(("-name", "-iname", "-path", "-ipath", "-wholename", "-iwholename"))


def read(call: Call) -> None:
    _Expression(call, list(call.parsed.operands)).run()


class _Expression:
    """`call.parsed` hands over all words: find's options and expression are read here."""

    def __init__(self, call: Call, words: list[Word]) -> None:
        self.call = call
        self.words = words
        self.at = 0
        self.starts: list[Word] = []
        self.names: list[str] = []  # patterns that what is found must match
        self.negated = False

    def run(self) -> None:
        call, words = self.call, self.words
        while self.at < len(words) and words[self.at].value in ("-H", "-L", "-P", "-D", "-O", "-O0", "-O1", "-O2", "-O3"):
            self.at += 2 if words[self.at].value in ("-D",) else 1
        while self.at < len(words) and not self._expression_starts(words[self.at]):
            self.starts.append(words[self.at])
            self.at += 1
        for start in self.starts:
            if not start.values and (start.prefix[:1] in ("-", "(", "!", ",") or several(start) or not starts_plainly(start)):
                call.opaque("opaque.dynamic_option", "find.start", start.span, start.prefix, call.mentions())
            call.path(ROLES["path.stat"], start, "find.start", start.span)
        if not self.starts:
            call.named(ROLES["path.stat"], ".", "find.start", call.span)
        self._collect()
        while self.at < len(words):
            self._primary(words[self.at])

    def _expression_starts(self, word: Word) -> bool:
        value = word.value
        if value is None:
            return False
        return (value.startswith("-") and len(value) > 1) or value in ("(", ")", "!", ",")

    def _collect(self) -> None:
        """Patterns that names must match, unless they are negated or pruned."""
        values = [word.value for word in self.words]
        for at in range(self.at, len(values) - 1):
            wanted = values[at] in _NAMES and values[at - 1] not in ("!", "-not")
            if wanted and "-prune" not in values[at + 2 : at + 4]:
                self.names.append(values[at + 1] or "")

    def _primary(self, word: Word) -> None:
        call = self.call
        name = word.value
        self.at += 1
        if name is None:
            call.opaque("opaque.dynamic_option", "find.expression", word.span, word.prefix, call.mentions())
        elif name in _NONE:
            return
        elif name in _TEXT or _NEWER.match(name):
            argument = self._argument()
            if argument is not None and several(argument) and not self._only_names(argument):
                call.opaque("opaque.dynamic_option", f"find.{name}", argument.span, argument.prefix, call.mentions())
            if argument is not None and name.startswith("-newer") and not name.endswith("t"):
                call.path(ROLES["path.stat"], argument, f"find.{name}", argument.span)
        elif name in _REFERENCE:
            call.path(ROLES["path.stat"], self._argument(), f"find.{name}", word.span)
        elif name == "-files0-from":
            call.path(ROLES["path.read"], self._argument(), "find.-files0-from", word.span)
        elif name in _WRITES:
            call.path(ROLES["path.write"], self._argument(), f"find.{name}", word.span)
        elif name == "-fprintf":
            call.path(ROLES["path.write"], self._argument(), "find.-fprintf", word.span)
            self._argument()
        elif name == "-delete":
            self._delete(word)
        elif name in _RUNS:
            self._run(name, word)
        else:
            call.opaque("opaque.unlisted_option", "find.expression", word.span, name, call.mentions())

    def _only_names(self, word: Word) -> bool:
        """`-name *.py`: find refuses more than one name, unless a further word is a primary; and none may lose its place."""
        if word.flags - {WordFlag.GLOB, WordFlag.SPLITS}:
            return False
        text = "".join(escape(part.text) if part.kind is PartKind.LITERAL else part.text for part in word.parts)
        behind = [other.value for other in self.words[self.at :]]
        hidden = any(value in _TEXT and after is not None and after[:1] == "-" for value, after in itertools.pairwise(behind))
        return not hidden and not any(overlaps(text, action) for action in _ACTIONS)

    def _argument(self) -> Word | None:
        if self.at >= len(self.words):
            return None
        self.at += 1
        return self.words[self.at - 1]

    def _delete(self, word: Word) -> None:
        """Deletes what is found: everything below the starting points, or what matches the names."""
        call = self.call
        role = ROLES["path.delete"]
        targets = [target for start in self.starts for target in resolve(start, call.place)]
        if not self.starts:
            targets = [Target(path) for path in call.place.cwds or ()] or [Target(None)]
        for target in targets:
            if target.path is None or not self.names:
                call.at(ROLES["path.delete_tree"], target, "find.-delete", word.span, edit=False)
                continue
            base = target.path if target.pattern else escape(target.path)
            for name in self.names:
                for found in self._named(base.rstrip("/"), name.rstrip("/")):
                    call.at(role, found, "find.-delete", word.span, edit=False)

    def _named(self, base: str, name: str) -> tuple[Target, ...]:
        """What a pattern for names or whole paths can mean below `base`. `*` in a pattern for paths goes past slashes."""
        last = Target(f"{base}/**/{name.rpartition('/')[2] or '*'}", True)
        if "/" not in name.lstrip("*/") or any(word.value in ("-prune", "!", "-not") for word in self.words):
            return (last,)  # which of the paths are left out is not told
        if name.startswith("*"):
            found: tuple[Target, ...] = (Target(f"{base}/**/{name.lstrip('*/')}", True),)
        else:
            found = locate(name, self.call.place, pattern=True)
        return tuple(
            target._replace(path=target.path + "*") if target.path is not None and target.path.endswith("/*") else target
            for target in found
        )

    def _run(self, name: str, word: Word) -> None:
        call = self.call
        end = self.at
        while end < len(self.words):
            value = self.words[end].value
            if value == ";" or (value == "+" and end > self.at and self.words[end - 1].value == "{}"):
                break
            if value is None and (several(self.words[end]) or not (self.words[end].values or self.words[end].prefix)):
                # It may be the `;` itself: then what follows is an expression again.
                call.opaque("opaque.dynamic_option", f"find.{name}", self.words[end].span, "", call.mentions())
            end += 1
        words = self.words[self.at : end]
        self.at = end + 1
        if not words:
            call.opaque("opaque.unlisted_option", f"find.{name}", word.span, name)
            return
        inner = tuple(self._found(piece, name.endswith("dir")) for piece in words)
        place = call.place
        if name.endswith("dir"):
            call.nest_in(inner, f"find {name}", None, self._pieces())
        else:
            call.nest_in(inner, f"find {name}", place.cwds, self._pieces())

    def _pieces(self) -> tuple[str, ...]:
        starts = tuple(piece for start in self.starts for piece in (start.value,) if piece is not None)
        said = selectors.said(("find", *(word.value for word in self.words)))
        return tuple(dict.fromkeys((*starts, *self.names, *said)))

    def _found(self, word: Word, local: bool) -> Word:
        """The word with `{}` as what find puts there: a path that begins with a starting point, or `./`."""
        if not any(part.kind is PartKind.LITERAL and "{}" in part.text for part in word.parts):
            return word
        starts = {start.value for start in self.starts} or {"."}
        prefix = "./" if local else starts.pop() if len(starts) == 1 else None
        if prefix is None:
            prefix = "." if all(start is not None and not start.startswith("-") for start in starts) and "." in starts else ""
        parts: list[Part] = []
        for part in word.parts:
            if part.kind is not PartKind.LITERAL:
                parts.append(part)
                continue
            pieces = part.text.split("{}")
            for at, piece in enumerate(pieces):
                if at:
                    if prefix:
                        parts.append(Part(PartKind.LITERAL, prefix if prefix.endswith("/") else f"{prefix}/", True))
                    parts.append(Part(PartKind.VARIABLE, "{}", True))
                if piece:
                    parts.append(Part(PartKind.LITERAL, piece, True))
        return Word(word.span, tuple(parts), (), word.flags | {WordFlag.VARIABLE})
