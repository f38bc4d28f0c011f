# SPDX-License-Identifier: GPL-3.0-or-later
"""One command being understood: its words as parsed, and the effects and nested commands found so far.

infer.py fills a Call from the table; the little languages add to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from sandboxd.effects.argv import Parsed
from sandboxd.effects.environment import Environment
from sandboxd.effects.roles import ROLES, Role
from sandboxd.effects.targets import Place, Target, fragments, locate, resolve
from sandboxd.model import Direction, Effect, EffectKind, PartKind, Sensitivity, Span, Word, WordFlag
from sandboxd.sensitive import fragments_sensitivity, pattern_sensitivity, sensitivity

# Files that hold nothing and keep nothing.
HARMLESS_FILES = frozenset(
    ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/fd/0", "/dev/fd/1", "/dev/fd/2", "/dev/full")
)
# Who opens one of these for writing opens anew what it was opened from: `sort -o /dev/stdin < f` overwrites `f`. That is told
# as an effect of its own (REOPENS), which `analyze` judges with the redirects of the whole line.
STREAMS = frozenset(("/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd/0", "/dev/fd/1", "/dev/fd/2"))
REOPENS = "stream.reopens"
# Members as names of this module: Python 3.11 looks an enum's members up in Python.
_READ, _HARMLESS = EffectKind.READ, Sensitivity.NONE
_OPAQUE, _NETWORK, _SECRET = EffectKind.OPAQUE, EffectKind.NETWORK, Sensitivity.SECRET
_FETCH, _SEND = Direction.FETCH, Direction.SEND
_CHANGES = frozenset((EffectKind.WRITE, EffectKind.DELETE))
# Of a host with dots and no scheme, only an address is surely not a name that makes curl guess.
_BARE = re.compile(r"(?:localhost|(?:\d{1,3}\.){3}\d{1,3}|[a-z0-9-]+(?=:\d))(?::\d{1,5})?(?:[/?#]|\Z)", re.I)
_FETCHED = frozenset(("http", "https", "file"))
_URL = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://)?(?:[^/@]*@)?(?P<host>\[[^\]]*\]|[^/:?#\[\]]+)(?P<port>:\d+)?(?P<end>[/?#:]|\Z)"
)


@dataclass(frozen=True, slots=True)
class Nested:
    """A command inside a command: an argv in `words`, or shell text in `text`.

    `via` names the construct; `harmless` says that allow rules may see through it; `cwds` are absolute, None = unknown;
    `appended`: words of unknown text follow. `hints` are literal pieces that its positional parameters may hold.
    """

    via: str
    span: Span
    cwds: tuple[str, ...] | None
    words: tuple[Word, ...] = ()
    text: str | None = None
    harmless: bool = False
    appended: bool = False
    hints: tuple[str, ...] = ()
    clean: bool = True


class Call:
    """`words` are those of the command with the tool's own name, `feed` literal pieces that come in by standard input."""

    # Written out: a dataclass with as many defaults takes twice as long to make, and one is made for every command.
    __slots__ = (
        *("name", "words", "parsed", "place", "span", "environment", "feed", "appended", "compares", "piped", "heredoc", "fed"),
        *("edit", "clean", "nested_done", "sends", "effects", "nested", "programs", "sources", "links", "said"),
    )

    def __init__(
        self,
        name: str,
        words: tuple[Word, ...],
        parsed: Parsed,
        place: Place,
        span: Span,
        environment: Environment,
        feed: tuple[str, ...],
        appended: bool,
        compares: bool,
        piped: bool,
    ) -> None:
        self.name = name
        self.words = words
        self.parsed = parsed
        self.place = place
        self.span = span
        self.environment = environment
        self.feed = feed
        self.appended = appended  # whether words of unknown text follow
        self.compares = compares  # whether all that `[[` compares as numbers are numbers
        self.piped = piped  # whether standard input is a pipe or a file
        self.heredoc = False  # whether standard input is text of the line itself
        self.fed = ""  # what is certain of standard input, see `outputs.stream`
        self.edit = False
        self.clean = True  # whether the environment it gives to others is known to be harmless
        self.nested_done = False
        self.sends = False  # whether data of this machine goes to the hosts it talks to
        self.effects: list[Effect] = []
        self.nested: list[Nested] = []
        self.programs: list[Word] = []  # words with the role `program`
        self.sources: list[Word] = []  # operands that are copied, moved or linked
        self.links: list[tuple[Word, Word]] = []  # (what is linked to, the new name)
        self.said: tuple[Place, list[tuple[Span, str]], Iterator[tuple[Span, str]]] | None = None  # see `_pieces`

    @property
    def id(self) -> str:
        return self.parsed.level.id

    def values(self, *names: str) -> list[Word]:
        """The values given to these options, in order."""
        if self.parsed.names.isdisjoint(names):
            return []
        return [given.value for given in self.parsed.given if given.value is not None and given.name_in(names)]

    def effect(
        self,
        role: Role,
        because: str,
        span: Span,
        target: str | None = None,
        *,
        detail: str = "",
        pieces: tuple[str, ...] = (),
        secret: bool = False,
    ) -> None:
        """Add an effect that is not about a path."""
        if role.kind is None:
            return
        self.effects.append(
            Effect(
                role.kind,
                because,
                span,
                target,
                role.act,
                role.code,
                detail,
                role.recursive,
                fragments=pieces,
                sensitivity=_SECRET if secret else _HARMLESS,
                direction=role.direction,
            )
        )

    def opaque(self, code: str, because: str, span: Span, detail: str = "", pieces: tuple[str, ...] = ()) -> None:
        self.effects.append(Effect(_OPAQUE, because, span, None, code=code, detail=detail, fragments=pieces))

    def path(self, role: Role, word: Word | None, because: str, span: Span, *, edit: bool | None = None) -> None:
        """Add the effect of a path role on everything that `word` can name."""
        if word is None:
            self.at(role, Target(None), because, span, edit=edit)
            return
        if not word.values and role.act in _OPENS and role.kind is EffectKind.WRITE and is_pipe(word):
            return  # what the command at its other end does is its own
        for target in resolve(word, self.place):
            self.at(role, target, because, word.span, edit=edit)
        if role.kind is _READ and not role.quiet:
            for value in word.values:
                if "=" in value or ":" in value:
                    self._inside(role, value, because, word.span)

    def _inside(self, role: Role, value: str, because: str, span: Span) -> None:
        """The secret that a value names behind a name or a scheme: `key=PATH`, `file:PATH?mode=ro`."""
        for piece in _JOINTS.split(value)[1:]:
            if "%" in piece:
                piece = _ESCAPED.sub(_unescaped, piece)
            for target in locate(piece, self.place) if piece else ():
                effect = path_effect(role, target, because, span, self.place.home, False)
                if effect.sensitivity is not _HARMLESS and effect not in self.effects:
                    self.effects.append(effect)

    def named(self, role: Role, text: str, because: str, span: Span, *, edit: bool | None = None) -> None:
        """Add the effect of a path role on a literal path."""
        for target in locate(text, self.place):
            self.at(role, target, because, span, edit=edit)

    def at(self, role: Role, target: Target, because: str, span: Span, *, edit: bool | None = None) -> None:
        if role.kind is None:
            return
        if target.path in HARMLESS_FILES and role.act in _OPENS:
            if role.act is not None and target.path in STREAMS:
                self.effects.append(Effect(EffectKind.ENV, REOPENS, span, target.path))
            return
        effect = path_effect(role, target, because, span, self.place.home, self.edit if edit is None else edit)
        self.effects.append(effect)

    def host(self, role: Role, word: Word | None, because: str, span: Span) -> None:
        """Add the NETWORK effect of a URL or host word; a `file:` URL is a READ."""
        if word is None:
            self.effect(role, because, span)
            return
        direction = role.direction
        if direction is _FETCH and not is_literal(word):
            direction = _SEND
        for text in word.values or (word.prefix,):
            match = _URL.match(text)
            scheme = "" if match is None else (match["scheme"] or "").lower()
            if role.name == "url.fetch" and scheme not in _FETCHED and not self._web(text):
                direction = _SEND  # without one of these schemes the program guesses, and may speak anything
            if match is not None and (match["scheme"] or "").lower() == "file":
                self.named(ROLES["path.read"], "/" + text[7:].partition("/")[2], because, word.span)
                continue
            host = None
            if match is not None and (word.values or match["end"]):
                host = match["host"].strip("[]").lower() + (match["port"] or "")
            self.effects.append(
                Effect(_NETWORK, because, word.span, host, fragments=fragments(word, self.place), direction=direction)
            )

    def _web(self, text: str) -> bool:
        """Whether curl takes an address without a scheme for http: it guesses another from the first label of the host alone."""
        return self.name == "curl" and _BARE.match(text) is not None and not self.parsed.has("--proto-default", "--proto")

    def nest(
        self, words: tuple[Word, ...], via: str, *, appended: bool = False, harmless: bool = False, hints: tuple[str, ...] = ()
    ) -> None:
        if words:
            self.nested.append(
                Nested(
                    via, words[0].span, self.place.cwds, words, harmless=harmless, appended=appended, hints=(*self.feed, *hints)
                )
            )

    def nest_in(self, words: tuple[Word, ...], via: str, cwds: tuple[str, ...] | None, hints: tuple[str, ...]) -> None:
        """A command that starts elsewhere, with words of which `hints` are literal pieces."""
        self.nested.append(Nested(via, words[0].span, cwds, words, hints=hints))

    def code(self, word: Word, via: str, because: str, hints: tuple[str, ...] = ()) -> None:
        """Shell text in a word: nested when it is known, OPAQUE otherwise."""
        if word.value is None:
            pieces = (*mentioned(fragments(word, self.place), code=True), *hints)
            self.opaque("opaque.dynamic_code", because, word.span, via, pieces)
        else:
            self.nested.append(Nested(via, word.span, self.place.cwds, text=word.value, hints=hints))

    def mentions(self, code: bool = False, without: Word | None = None) -> tuple[str, ...]:
        """The literal pieces of all arguments and of standard input: evidence for what an opaque command touches.

        Of `code`, the tokens count that can be paths; of other words the word itself and what follows a `=` in it.
        """
        skipped = None if without is None else without.span
        pieces = (piece for span, piece in self._pieces() if span != skipped)
        return mentioned(chain(pieces, self.feed), code)

    def _pieces(self) -> Iterator[tuple[Span, str]]:
        """The pieces of all words, each made once: a command of many words may ask for those of all of them as often."""
        if self.said is None or self.said[0] is not self.place:
            place = self.place
            self.said = (place, [], ((word.span, piece) for word in self.words[1:] for piece in fragments(word, place)))
        _, known, more = self.said
        at = 0
        while True:
            if at == len(known):
                found = next(more, None)
                if found is None:
                    return
                known.append(found)
            yield known[at]
            at += 1


def mentioned(pieces: Iterable[str], code: bool = False) -> tuple[str, ...]:
    out: list[str] = []
    for piece in pieces:
        if len(out) >= MAX_MENTIONS:
            break
        if code:
            out += filter(None, _CODE_BREAK.split(piece, MAX_MENTIONS + 1)[: MAX_MENTIONS + 1])  # the last is all the rest
        else:
            out.append(piece)
            if "=" in piece:
                name, _, value = piece.partition("=")
                if value and "/" not in name:
                    out.append(value)
    return tuple(dict.fromkeys(out[:MAX_MENTIONS]))


_JOINTS = re.compile(r"[=,?#]|:(?://)?")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


# More tokens than this say nothing more.
MAX_MENTIONS = 256
_CODE_BREAK = re.compile(r"[\s\"'`()<>|;,=:&{}\[\]]+")
_OPENS = frozenset((None, *(role.act for role in ROLES.values() if role.name in ("path.write", "path.append", "path.edit"))))


def is_pipe(word: Word) -> bool:
    """Whether it is one `>( )`: a pipe of the line's own, named `/dev/fd/N`."""
    return len(word.parts) == 1 and word.parts[0].kind is PartKind.PROCESS


def is_literal(word: Word) -> bool:
    """Whether the text of the word is known for certain: no data of this machine is in it."""
    return not word.flags or (bool(word.values) and WordFlag.EVALUATES not in word.flags)


def path_effect(role: Role, target: Target, because: str, span: Span, home: str, edit: bool) -> Effect:
    """The effect of `role` on one target, with the sensitivity of what is read."""
    kind = role.kind
    assert kind is not None
    level = _HARMLESS
    if kind is _READ and not role.quiet:
        level = read_sensitivity(target, home, role.recursive)
    return Effect(
        kind,
        because,
        span,
        target.path,
        role.act,
        "path.dotdot" if target.dotdot else role.code,
        "",
        role.recursive,
        target.pattern,
        target.fragments,
        level,
        None,
        edit and kind in _CHANGES,
    )


def read_sensitivity(target: Target, home: str, recursive: bool) -> Sensitivity:
    if target.path is None:
        return fragments_sensitivity(target.fragments, home)
    if recursive:
        level = pattern_sensitivity(target.path, home) if target.pattern else sensitivity(target.path, home)
        return level if level is not _HARMLESS else pattern_sensitivity(f"{target.path.rstrip('/')}/**", home)
    if target.pattern:
        return pattern_sensitivity(target.path, home)
    return sensitivity(target.path, home)
