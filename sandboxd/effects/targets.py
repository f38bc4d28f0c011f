# SPDX-License-Identifier: GPL-3.0-or-later
"""From a word to the paths it can name: lexical, against every directory the command can start in.

What cannot be resolved keeps its literal pieces as fragments, in the order they stand, for those who look for evidence.
`..` is collapsed in the target, and the target is marked (`dotdot`), since a symlink before it changes its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sandboxd.effects.selectors import printed
from sandboxd.globs import is_glob
from sandboxd.model import Part, PartKind, Word, WordFlag
from sandboxd.paths import has_dotdot, join, normalize, strip_proc_root

# Operators whose operand can stand for the variable.
_DEFAULTS = frozenset((":-", "-", ":=", "=", ":+", "+"))
# More possible targets than this are one unresolved target.
MAX_TARGETS = 32
MAX_PATH = 4_096  # the kernel takes no longer one (PATH_MAX); nor is it remembered by who looks at paths
_MAX_NAMES = 64  # that what a variable holds is taken for
_MAX_NEW = 256  # characters of a replacement, and of what it is made in

# Members as names of this module: Python 3.11 looks an enum's members up in Python.
_SPLITS = WordFlag.SPLITS
_LITERAL, _GLOB, _TILDE = PartKind.LITERAL, PartKind.GLOB, PartKind.TILDE
_VARIABLE, _SUBSTITUTION = PartKind.VARIABLE, PartKind.SUBSTITUTION

_PROC_CWD = re.compile(r"/proc/(?:self|thread-self)(?:/task/[^/]+)?/cwd(?=/|\Z)")
_PROC_OTHER = re.compile(r"/proc/[^/]+(?:/task/[^/]+)?/(?:cwd|root)(?=/|\Z)")
_GLOB_CHARS = re.compile(r"([*?\[\]\\])")
_GIT_DIR = re.compile(r"\s*git\s+(?:-\S+\s+)*rev-parse\s+(?:-\S+\s+)*--(?:(?:absolute-)?git-(?:common-)?dir\s*\Z|git-path\s)")
# Substitutions that print their one literal word, or where it leads.
_ECHO = re.compile(
    r"\s*(?:echo(?:\s+-n)?|printf(?:\s+(['\"]?)%s(?:\\n)?\1)?|realpath|readlink\s+-f)\s+(['\"]?)([\w./~-]+)\2\s*\Z"
)
_PWD = re.compile(r"\s*pwd(?:\s+-[LP])?\s*\Z")


class Place(NamedTuple):
    """Where a command runs. `cwds` are absolute; None = unknown. `known` are variables whose value is certain, `hints` literal
    pieces that a variable may hold."""

    cwds: tuple[str, ...] | None
    home: str
    known: tuple[tuple[str, str], ...] = ()
    hints: tuple[tuple[str, tuple[str, ...]], ...] = ()
    moved: bool = False  # whether HOME may have another value than `home`


class Target(NamedTuple):
    """One path that a word can name. `path` None = unresolved."""

    path: str | None
    pattern: bool = False
    dotdot: bool = False
    fragments: tuple[str, ...] = ()


UNKNOWN = Target(None)


def escape(text: str) -> str:
    """Literal text as it stands in a glob."""
    return _GLOB_CHARS.sub(r"\\\1", text) if _GLOB_CHARS.search(text) else text


def resolve(word: Word, place: Place) -> tuple[Target, ...]:
    """All targets of the word; one unresolved target when they are not known."""
    values = word.values
    if values and not (word.flags and _SPLITS in word.flags and any(" " in value or is_glob(value) for value in values)):
        if len(values) == 1:
            return locate(values[0], place)
        if len(values) > MAX_TARGETS:
            return (Target(None, fragments=values[:MAX_TARGETS]),)
        return _unique(target for value in values for target in locate(value, place))
    text = _pattern_text(word.parts, place)
    if text is not None:
        return locate(text, place, pattern=is_glob(text)) if is_glob(text) else locate(_unescape(text), place)
    out = [Target(None, fragments=fragments(word, place))]
    if any(part.default is not None or part.operand for part in word.parts):
        assumed = _pattern_text(_assumed(word.parts), place)
        if assumed is not None:
            out.extend(locate(assumed, place, pattern=True) if is_glob(assumed) else locate(_unescape(assumed), place))
    return tuple(out)


def moved(word: Word | None, place: Place) -> Place:
    """The place after a change to the directory that the word names."""
    targets = (UNKNOWN,) if word is None else resolve(word, place)
    paths = tuple(target.path for target in targets if target.path is not None and not target.pattern)
    return place._replace(cwds=paths if len(paths) == len(targets) else None)


def locate(path: str, place: Place, pattern: bool = False) -> tuple[Target, ...]:
    """The targets of literal text (a glob when `pattern`) as a path."""
    if not path:
        return (UNKNOWN,)
    if len(path) > MAX_PATH:
        return (Target(None, fragments=(path,)),)
    dotdot = ".." in path and has_dotdot(path)
    cwds = place.cwds
    if path[0] == "/":
        return (_target(normalize(path), pattern, dotdot, place),)
    if cwds is None:
        return (Target(None, fragments=(path,)),)
    if len(cwds) == 1:
        return (_target(normalize(f"{escape(cwds[0]) if pattern else cwds[0]}/{path}"), pattern, dotdot, place),)
    bases = (escape(base) for base in cwds) if pattern else cwds
    return _unique(_target(join(base, path), pattern, dotdot, place) for base in bases)


def _target(path: str, pattern: bool, dotdot: bool, place: Place) -> Target:
    if path.startswith("/proc/"):
        match = _PROC_CWD.match(path)
        if match is not None:
            if place.cwds is None or len(place.cwds) != 1:
                return Target(None, fragments=(path[match.end() :],))
            return Target(normalize(place.cwds[0] + path[match.end() :]), pattern, dotdot)
        path = strip_proc_root(path)
        match = _PROC_OTHER.match(path)
        if match is not None:
            return Target(None, fragments=(path[match.end() :],))
    return Target(path, pattern, dotdot)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text) if "\\" in text else text


def _assumed(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts with the operands of `:-` and its kin in the place of their variables."""
    out: list[Part] = []
    for part in parts:
        if part.kind is not _VARIABLE or part.op not in _DEFAULTS:
            out.append(part)
        elif part.default is not None:
            out += _operand_text(part.default, part.quoted)
        elif part.operand:
            for number, piece in enumerate(part.operand):
                plain = piece.kind is _LITERAL and not piece.quoted
                out += _operand_text(piece.text, number > 0) if plain else _assumed((piece,))
        else:
            out.append(part)
    return tuple(out)


def _operand_text(text: str, quoted: bool) -> list[Part]:
    """Literal text of an operand: where it is not quoted, a tilde at its start and a glob mean what they mean elsewhere."""
    out: list[Part] = []
    if not quoted and text.startswith("~"):
        tilde, slash, rest = text.partition("/")
        out.append(Part(_TILDE, tilde))
        text = slash + rest
    if text:
        out.append(Part(_GLOB if not quoted and is_glob(text) else _LITERAL, text, quoted))
    return out


def _pattern_text(parts: tuple[Part, ...], place: Place) -> str | None:
    """The word's text as a glob (literal characters escaped), or None when a piece of it is not known."""
    out = []
    for at, part in enumerate(parts):
        if part.kind is _LITERAL:
            out.append(escape(part.text))
        elif part.kind is _GLOB:
            out.append(part.text)
        else:
            known = _known(part, place) if at == 0 or part.kind is not _TILDE else None
            if known is None:
                return None
            out.append(escape(known))
    return "".join(out)


def _known(part: Part, place: Place) -> str | None:
    """The text of an expansion that can be told without running anything."""
    if part.kind is _TILDE:
        if part.text == "~":
            return None if place.moved else place.home
        return _single(place) if part.text == "~+" else None
    if part.kind is _VARIABLE and not part.op:
        if part.text == "PWD":
            return _single(place)
        return next((value for name, value in place.known if name == part.text), None)
    if part.kind is _SUBSTITUTION and _PWD.match(part.text):
        return _single(place)
    return None


def _single(place: Place) -> str | None:
    return place.cwds[0] if place.cwds is not None and len(place.cwds) == 1 else None


def fragments(word: Word, place: Place) -> tuple[str, ...]:
    """The literal pieces of a word, joined where they touch; defaults and hints stand for what expands."""
    if word.values:
        return word.values
    out: list[str] = []
    current = ""
    extra: list[str] = []
    for part in word.parts:
        piece = _piece(part, place)
        if piece is not None:
            current += piece
            continue
        if part.kind is _VARIABLE and place.hints:
            extra.extend(current + hint for hint in _hinted(part, place.hints))
        elif part.kind is _TILDE:
            extra.extend(current + hint for name, pieces in place.hints if name == "HOME" for hint in pieces)
        elif part.kind is _SUBSTITUTION:
            extra.extend(current + name for name in printed(part.text))
        if current:
            out.append(current)
        current = ""
    if current:
        out.append(current)
    return tuple(dict.fromkeys((*out, *extra)))


def _hinted(part: Part, hints: tuple[tuple[str, tuple[str, ...]], ...]) -> list[str]:
    """What the variables of an expansion may hold, as far as the text tells, and what a replacement makes of it."""
    names = {"*", *("*_" if each.text == "*" else each.text for each in (part, *part.operand) if each.kind is _VARIABLE)}
    # What it holds may be a name: `${!n}`, a reference.
    names.update(hint for name, pieces in hints if name == part.text for hint in pieces[:_MAX_NAMES] if hint.isidentifier())
    found = [hint for name, pieces in hints if name in names for hint in pieces]
    if part.op[:1] == "/" and all(piece.kind is _LITERAL for piece in part.operand):
        old, _, new = "".join([piece.text for piece in part.operand]).partition("/")
        if old and len(new) <= _MAX_NEW:
            found += [hint.replace(old, new) for hint in found if old in hint and len(hint) <= _MAX_NEW]
    return found


def _piece(part: Part, place: Place) -> str | None:
    """The text that a part may well have, for evidence."""
    if part.kind in (_LITERAL, _GLOB):
        return part.text
    if part.kind is _VARIABLE and part.default is not None and part.op in _DEFAULTS:
        return part.default
    if part.operand and part.op in _DEFAULTS:
        pieces = [_piece(piece, place) for piece in part.operand]
        return None if None in pieces else "".join(filter(None, pieces))
    if part.kind is _SUBSTITUTION and _GIT_DIR.match(part.text):
        return ".git"
    if part.kind is _SUBSTITUTION:
        shown = _ECHO.match(part.text)
        if shown is not None:
            return place.home + shown[3][1:] if shown[3].startswith("~/") else shown[3]
    known = _known(part, place)
    return _CONVENTIONAL.get(part.text) if known is None and part.kind is _VARIABLE and not part.op else known


# What variables hold by convention that only the environment sets. Whoever gives them another value on the line is believed.
_CONVENTIONAL = {
    "GIT_DIR": ".git",
    "GIT_COMMON_DIR": ".git",
    "GIT_CONFIG": ".gitconfig",
    "GIT_CONFIG_GLOBAL": ".gitconfig",
    "GNUPGHOME": ".gnupg",
    "CARGO_HOME": ".cargo",
    "XDG_CONFIG_HOME": ".config",
    "NPM_CONFIG_USERCONFIG": ".npmrc",
    "npm_config_userconfig": ".npmrc",
    "RIPGREP_CONFIG_PATH": ".ripgreprc",
    "INPUTRC": ".inputrc",
    "BASH_ENV": ".bashrc",
    "CLAUDE_CONFIG_DIR": ".claude",
    "CODEX_HOME": ".codex",
    "KUBECONFIG": ".kube/config",
    "AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials",
    "GOOGLE_APPLICATION_CREDENTIALS": ".config/gcloud/application_default_credentials.json",
    "NETRC": ".netrc",
    "PGPASSFILE": ".pgpass",
    "HISTFILE": ".bash_history",
}


def _unique(targets: Iterable[Target]) -> tuple[Target, ...]:
    return tuple(dict.fromkeys(targets))
