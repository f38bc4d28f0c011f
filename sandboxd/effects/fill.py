# SPDX-License-Identifier: GPL-3.0-or-later
"""From a parsed command to its effects by the table alone: standing ones, options, operands, then the tool's language."""

from __future__ import annotations

import re

from sandboxd.effects import argv
from sandboxd.effects.argv import Given, several
from sandboxd.effects.assigning import SOURCES, Assigning
from sandboxd.effects.call import is_literal, path_effect
from sandboxd.effects.languages.readers import READERS
from sandboxd.effects.roles import ROLES, TEXT, Role
from sandboxd.effects.rows import Standing, When
from sandboxd.effects.selectors import regex_names
from sandboxd.effects.targets import Place, Target, fragments, locate, moved, resolve
from sandboxd.globs import is_glob
from sandboxd.model import Direction, EffectKind, Sensitivity, Span, Word

# Members as names of this module: Python 3.11 looks an enum's members up in Python.
_NETWORK, _OPAQUE = EffectKind.NETWORK, EffectKind.OPAQUE
_FETCH, _SEND = Direction.FETCH, Direction.SEND
_CHDIR = ROLES["path.chdir"]
_INTO = frozenset(("path.into", "path.into_tree", "path.link"))


class Filling(Assigning):
    """From a parsed command to its effects: standing ones, options, operands, then the tool's own language."""

    __slots__ = ("inside",)

    def run(self) -> None:
        """Add all that the words do."""
        parsed = self.parsed
        loose = 0
        for word in parsed.operands:
            if word.flags and several(word):
                loose += 1
        self.least = len(parsed.operands) - loose
        self.most = None if loose or self.appended else self.least
        self.inside = 0  # how many names were put below a destination
        level = parsed.level
        for problem in parsed.problems:
            self.opaque(problem.code, f"{level.id}.unlisted", problem.span, problem.detail, self.mentions())
        if level.subs and level.operands is None and not level.any and not (parsed.operands or parsed.problems):
            self.opaque("opaque.unlisted_subcommand", f"{level.id}.unlisted", self.span, "", self.mentions())
        if self.appended and not level.inert and not self._behind_end():
            self.opaque("opaque.dynamic_option", f"{level.id}.appended", self.span, "", self.mentions())
        if parsed.given:
            self._chdir()
        whens: list[When] = []
        self.edit = level.edit
        for when in level.when:
            if when.any and when.any.isdisjoint(parsed.names):
                continue  # most of them
            if argv.matches(when, parsed.names, self.least, self.most):
                whens.append(when)
                self.edit = self.edit or when.edit
        for standing in level.effects:
            self._standing(standing, f"{level.id}.effects")
        for when in whens:
            for standing in when.effects:
                self._standing(standing, f"{level.id}.when")
        operands = self._roles(whens)
        for given in parsed.given:
            option = given.option
            if option.role is not TEXT or option.values is not None or option.effects:
                self._given(given)
        if operands:
            because = f"{level.id}.operand"
            for operand, roles in operands:
                for role in roles:
                    if role is not TEXT:
                        self._role(role, operand, because, operand.span)
        if level.behind is not None and parsed.end is not None:
            for word in parsed.operands[parsed.end :]:
                self._role(level.behind, word, f"{level.id}.behind", word.span)
        if level.language:
            READERS[level.language](self)
        if self.sends:
            self.effects[:] = [
                effect._replace(direction=_SEND) if effect.direction is _FETCH else effect for effect in self.effects
            ]
        for effect in self.effects:
            if effect.kind is _NETWORK:
                self._network()
                break

    def _network(self) -> None:
        """Any unknown word of a command that talks to a host can carry data out; credentials are named."""
        dynamic = self.appended or any(not is_literal(word) for word in self.words)
        keys = self.parsed.table.credentials
        if not (dynamic or keys):
            return
        for at, effect in enumerate(self.effects):
            if effect.kind is _NETWORK:
                direction = _SEND if dynamic and effect.direction is _FETCH else effect.direction
                self.effects[at] = effect._replace(direction=direction, detail=effect.detail or " ".join(keys))

    def _behind_end(self) -> bool:
        words = [word.value for word in self.words]
        return "--" in words or (not self.parsed.level.permute and bool(self.parsed.operands))

    def _chdir(self) -> None:
        """Options that change the directory count for all paths of the command, wherever they stand; tar reads its own."""
        if self.parsed.level.language != "tar":
            for given in self.parsed.given:
                if given.option.role is _CHDIR:
                    self.place = moved(given.value, self.place)

    def _standing(self, standing: Standing, because: str) -> None:
        role = standing.role
        if role.name == "send":
            self.sends = True
        elif role.path:
            if standing.target is None:
                self.at(role, Target(None), because, self.span)
            else:
                self.named(role, _home(standing.target, self.place.home), because, self.span)
        elif role.name == "git.config":
            self._git_config(role, because, self.span)
        elif role.name == "git.global":
            self.named(ROLES["path.edit"], f"{self.place.home}/.gitconfig", because, self.span, edit=False)
        elif role.name == "secret":
            self.effect(role, because, self.span, detail=standing.target or "", secret=True)
        elif role.kind is _OPAQUE:
            pieces = self.mentions(role.name in _CODE)
            self.effect(role, because, self.span, detail=standing.target or "", pieces=pieces)
        else:
            self.effect(role, because, self.span, standing.target)

    def _git_config(self, role: Role, because: str, span: Span) -> None:
        folders = self.values("--git-dir")
        for target in (t for word in folders for t in resolve(word, self.place)):
            path = None if target.path is None else f"{target.path}/config"
            self.at(role, target._replace(path=path), because, span, edit=False)
        if not folders:
            self.named(role, ".git/config", because, span, edit=False)

    def _given(self, given: Given) -> None:
        option = given.option
        because = f"{self.id}.{option.names[-1]}"
        role = option.role
        if option.values is not None:
            value = given.value
            if value is None or not value.values or not all(option.knows(text) for text in value.values):
                role = option.otherwise
        if given.value is not None or role.name != "text":
            self._role(role, given.value, because, given.span)
        for standing in option.effects:
            self._standing(standing, because)

    def _role(self, role: Role, word: Word | None, because: str, span: Span) -> None:
        name = role.name
        if role is TEXT or role is _CHDIR:
            return
        if name == "program":
            if word is not None:
                self.programs.append(word)
            return
        if name == "send":
            self.sends = True
        elif role.path:
            if name in _INTO:
                self._into(role, word, because, span)
                return
            if name == "path.mirror":
                self._into(ROLES["path.into_tree"], word, because, span)
            elif name == "path.send":
                self.sends = True
            self.path(role, word, because, span)
        elif role.kind is _NETWORK:
            self.host(role, word, because, span)
        elif name in ("command", "code.rest"):
            self._nested(name, because)
        elif name == "code.shell":
            if word is None:
                self.opaque("opaque.dynamic_code", because, span)
            else:
                self.code(word, f"{self.name}", because)
        elif name == "secret":
            self.effect(role, because, span, detail="" if word is None else word.prefix, secret=True)
        elif name == "secret.named":
            texts = () if word is None else word.values
            if not texts or any("secret" in text.lower() for text in texts):
                self.effect(role, because, span, detail="" if word is None else word.prefix, secret=True)
        elif name == "value":
            self._value(role, word, because)
        elif name == "name":
            if word is None or not word.values or not all(_PLAIN_NAME.fullmatch(text) for text in word.values):
                self.opaque("opaque.script", because, span, "it may be a file that is run", self.mentions())
        elif name in ("git.config", "git.global"):
            self._standing(Standing(role), because)
        elif name == "git.format":
            if word is None or not word.values or any("%G" in value or "%(signature" in value for value in word.values):
                self.opaque("opaque.program", because, span, "a pretty format that may run gpg")
        elif name == "git.remote":
            if word is not None and word.values and all(_REMOTE.fullmatch(text) for text in word.values):
                self.effect(ROLES["host.fetch"], because, span, "remote")
            else:
                self.host(ROLES["url.fetch"], word, because, span)
        elif name == "glob.read":
            self._selects(word, because)
        elif name == "git.object":
            self._git_object(role, word, because, span)
        else:
            pieces = () if word is None else fragments(word, self.place)
            if role.kind is _OPAQUE:
                pieces = self.mentions(name in _CODE, word if name in _NAMES_CODE else None)
            self.effect(role, because, span, None if word is None else word.value, pieces=pieces)

    def _value(self, role: Role, word: Word | None, because: str) -> None:
        """A value that may stand for the contents of a file. An unknown one is a send by `_network`."""
        for text in () if word is None else word.values:
            for mark in _FILE_MARKS:
                at = 0 if text.startswith(mark) else text.find(f"={mark}") + 1
                if word is not None and (at or text.startswith(mark)):
                    self.sends = True
                    self.named(role, text[at + len(mark) :] or ".", because, word.span)

    def _selects(self, word: Word | None, because: str) -> None:
        """Names of files that are searched in the places given: those that can be a secret's are reads of their own."""
        if word is None or self.parsed.has("--files"):
            return
        for value in word.values:
            if value[:1] == "!":
                continue
            text = value.rpartition(":")[2].lstrip("/")
            names = regex_names(text) if self.name == "ag" else _alternatives(text.lower())
            for name in names:
                for target in locate(f"**/{name}", self.place, pattern=True):
                    effect = path_effect(ROLES["glob.read"], target, because, word.span, self.place.home, False)
                    if effect.sensitivity is not Sensitivity.NONE:
                        self.effects.append(effect)

    def _git_object(self, role: Role, word: Word | None, because: str, span: Span) -> None:
        """A revision, `REV:path`, or a path: what counts is whether its contents are secret."""
        if word is None or not word.values:
            self.path(role, word, because, span)
            return
        for value in word.values:
            self.named(role, value.rpartition(":")[2] or value, because, word.span)
            if is_glob(value):
                self._selects(word, because)
        self.effects[:] = [
            effect._replace(sensitivity=Sensitivity.NONE)
            if effect.because == because and effect.sensitivity is Sensitivity.SETTINGS
            else effect
            for effect in self.effects
        ]

    def _nested(self, name: str, because: str) -> None:
        spec = argv.nested_spec(self.parsed.level, self.parsed)
        words = tuple(self.parsed.operands[len(spec) - 1 :]) if spec else ()
        if not words or self.nested_done:
            return
        self.nested_done = True
        if name == "command":
            self.nest(words, self.name, appended=self.appended, harmless=self.parsed.table.wrapper == "harmless")
        elif len(words) == 1 and not self.appended:
            self.code(words[0], self.name, because)
        elif all(is_literal(word) and word.value is not None for word in words) and not self.appended:
            text = " ".join(word.value or "" for word in words)
            self.code(argv.literal(text, Span(words[0].span.start, words[-1].span.end)), self.name, because)
        else:
            self.opaque("opaque.dynamic_code", because, self.span, self.name, self.mentions())

    def _into(self, role: Role, word: Word | None, because: str, span: Span) -> None:
        """A destination: the path itself and, in case it is a directory, the sources' names below it."""
        link = role.name == "path.link"
        targets = (Target(None),) if word is None else resolve(word, self.place)
        plain = ROLES["path.link"] if link else ROLES["path.into"]
        sources = (
            [source for source in self.sources if source is not word]
            if link or role.name == "path.into_tree" or any(target.path is not None for target in targets)
            else []  # what they add to a place that is not known is not asked
        )
        spread = role.name == "path.into_tree" and any(_is_contents(source) for source in sources)
        for target in targets:
            self.at(role if spread else plain, target, because, span)
            if target.path is None or (word is not None and _looks_like_file(word) and not link):
                continue
            if self.inside > _MAX_INSIDE:
                continue
            self.inside += len(sources)
            if self.inside > _MAX_INSIDE:
                self._flood(role, sources, because, span)
                continue
            for source in sources:
                for name in _names(source, self.place):
                    if name is None:
                        continue
                    inside = target._replace(
                        path=f"{target.path.rstrip('/')}/{name}", pattern=target.pattern or _is_pattern(name)
                    )
                    self.at(role, inside, because, span)
        if link and word is not None:
            self.links.extend((source, word) for source in sources[: _MAX_LINKS - len(self.links)])

    def _flood(self, role: Role, sources: list[Word], because: str, span: Span) -> None:
        """Where each of many words may be the destination of all others: one place that is not known, and all their names."""
        names = dict.fromkeys(name for source in sources for name in _names(source, self.place) if name is not None)
        self.at(role, Target(None, fragments=tuple(names)), because, span)

    def _roles(self, whens: list[When]) -> list[tuple[Word, tuple[Role, ...]]]:
        """Each operand with the roles it can have; none where no operand has an effect."""
        parsed = self.parsed
        level = parsed.level
        operands = parsed.operands
        if level.any or not (operands or self.appended):
            return []
        specs = self._specs(whens, level)
        if operands and not specs:
            if not parsed.problems:
                self._too_many(operands[0])
            return []
        if self.most is not None:
            return self._each(specs[0], operands)
        pairs: list[tuple[Word, list[Role]]] = [(word, []) for word in operands]
        for spec in specs:
            self._assign(spec, pairs)
        self.sources = [word for word, roles in pairs if any(role.name in SOURCES for role in roles)]
        found = [(word, tuple(dict.fromkeys(roles))) for word, roles in pairs]
        if self.appended:
            if any(spec and spec[-1].role.nests and len(operands) < len(spec) for spec in specs):
                self.opaque("opaque.dynamic_command", f"{level.id}.appended", self.span, "", self.mentions())
            roles = [operand.role for spec in specs for operand in spec if operand.role.name != "text"]
            for role in dict.fromkeys(roles):
                if role.path and role.kind is not None:
                    target = Target(None, fragments=self.feed)
                    self.at(role, target, f"{level.id}.appended", self.span)
                elif not role.nests and role.name != "program":
                    self._role(role, None, f"{level.id}.appended", self.span)
        return found


# So many names below destinations are told one by one, and so many links.
_MAX_INSIDE = 4_096
_MAX_LINKS = 256
# How values say that the contents of a file are meant: aws, az, gh, kubectl.
_FILE_MARKS = ("@", "file://", "fileb://", "go-template-file=", "templatefile=", "jsonpath-file=", "custom-columns-file=")
# The name of a configured remote, which is no address.
_REMOTE = re.compile(r"[A-Za-z0-9_-]+")
# A name that no tool takes for a file or an address.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9@][\w@+.-]*(?:/[A-Za-z0-9@][\w@+.-]*)*(?<!\.rb)")
# Opaque roles whose words are program text.
_CODE = frozenset(("opaque.code", "opaque.script"))
# Opaque roles whose own word names what is read, not what is touched.
_NAMES_CODE = frozenset(("opaque.script", "opaque.config"))


def _names(source: Word, place: Place) -> tuple[str | None, ...]:
    """The last components that a source can have (a glob's stays a glob); None where it is not known or adds nothing."""
    out = []
    for target in resolve(source, place):
        if target.path is None:
            last = target.fragments[-1].rstrip("/").rpartition("/")[2] if target.fragments else ""
            out.append(None if not last else "*" + last if not last.startswith(".") else last)
        elif _is_contents(source):
            out.append(None)
        else:
            out.append(target.path.rpartition("/")[2] or None)
    return tuple(out)


def _alternatives(glob: str) -> list[str]:
    """A glob with the first of its braces opened, as ripgrep and git know them."""
    before, brace, rest = glob.partition("{")
    inside, end, after = rest.partition("}")
    return [f"{before}{each}{after}" for each in inside.split(",")] if brace and end else [glob]


def _is_contents(source: Word) -> bool:
    """`dir/.` and `dir/`: what is copied are the contents, not the directory."""
    text = source.value or ""
    return text in (".", "..") or text.endswith(("/.", "/..", "/"))


def _looks_like_file(word: Word) -> bool:
    """`notes.txt`: a destination with an extension is taken for the file itself, `dir`, `dir/` and `.x` are not."""
    text = (word.value or "").rpartition("/")[2]
    return "." in text.strip(".")


def _is_pattern(name: str) -> bool:
    return any(char in name for char in "*?[")


def _home(target: str, home: str) -> str:
    return f"{home}/{target[2:]}" if target.startswith("~/") else home if target == "~" else target
