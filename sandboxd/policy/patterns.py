# SPDX-License-Identifier: GPL-3.0-or-later
"""The text patterns inside rules: over a decoded argv, over a path, over a host name. No backtracking anywhere.

An argv is matched as one text whose words are joined by NUL, so that a space inside a word is not a word boundary; a
word that is not known stands as one U+0001, which only `*` can match.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from sandboxd.globs import is_glob, literal_prefix, path_overlaps
from sandboxd.paths import is_within, normalize

WORD = "\0"
UNKNOWN = "\1"
_SPACE = " \t\n"


def argv_text(argv: tuple[str | None, ...]) -> str:
    return WORD.join([UNKNOWN if word is None else word for word in argv])


@dataclass(frozen=True, slots=True)
class ArgvPattern:
    """`segments` are the literal texts between the `*`; `prefix`: more words may follow after a word boundary."""

    segments: tuple[str, ...]
    prefix: bool

    @property
    def exact(self) -> bool:
        return len(self.segments) == 1 and not self.prefix

    @property
    def first_word(self) -> str | None:
        """The program name it asks for, None when a `*` stands in it."""
        head, separator, _ = self.segments[0].partition(WORD)
        return head if separator or len(self.segments) == 1 else None

    @property
    def words(self) -> tuple[str, ...]:
        """The literal words of it, in order."""
        return tuple(word for segment in self.segments for word in segment.split(WORD) if word)

    def matches(self, text: str) -> bool:
        first, *rest = self.segments
        if not text.startswith(first):
            return False
        at = len(first)
        if not rest:
            return at == len(text) or (self.prefix and text[at] == WORD)
        for segment in rest[:-1]:
            at = text.find(segment, at)
            if at < 0:
                return False
            at += len(segment)
        last = rest[-1]
        if not self.prefix:
            return len(text) - len(last) >= at and text.endswith(last)
        while (at := text.find(last, at)) >= 0:
            end = at + len(last)
            if end == len(text) or text[end] == WORD:
                return True
            at += 1
        return False


def parse_argv_pattern(content: str, *, quoted_star: bool) -> ArgvPattern:
    """The pattern that the content of a `Bash(…)` rule means.

    Words are split and quotes removed as a shell would; quotes that do not close are literal. `quoted_star` tells
    whether a `*` inside quotes is a wildcard: so it is for rules that tighten, never for those that allow.
    """
    prefix = False
    if content.endswith(":*"):
        content, prefix = content[:-2], True
    elif content.startswith("prefix:"):
        content, prefix = content[len("prefix:") :], True
    words = _words(content, quoted_star, quotes=True)
    if words is None:
        words = _words(content, quoted_star, quotes=False) or []
    if len(words) > 1 and words[-1] == ["", ""]:
        words.pop()
        prefix = True
    segments = [""]
    for number, word in enumerate(words):
        segments[-1] += (WORD if number else "") + word[0]
        segments.extend(word[1:])
    return ArgvPattern(tuple(segments), prefix)


def _words(content: str, quoted_star: bool, *, quotes: bool) -> list[list[str]] | None:
    """Words as lists of literals with a `*` between each two; None when a quote does not close."""
    words: list[list[str]] = []
    word: list[str] | None = None
    quote = ""
    at = 0
    while at < len(content):
        char = content[at]
        at += 1
        if not quote and char in _SPACE:
            if word is not None:
                words.append(word)
            word = None
            continue
        if word is None:
            word = [""]
        if quotes and char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        elif char == "\\" and quote != "'" and at < len(content) and (not quote or content[at] in '"\\$`*'):
            word[-1] += content[at]
            at += 1
        elif char == "*" and (not quote or quoted_star):
            word.append("")
        else:
            word[-1] += char
    if quote:
        return None
    if word is not None:
        words.append(word)
    return words


def split_words(text: str) -> tuple[str, ...]:
    """A one-command example text as its words, quotes removed; nothing is expanded."""
    words = _words(text, False, quotes=True)
    if words is None:
        words = _words(text, False, quotes=False) or []
    return tuple("*".join(word) for word in words)


def in_text(pattern: ArgvPattern, text: str) -> bool:
    """Whether the pattern could be meant anywhere in a text that nobody could parse: its literals in order, at words."""
    flat = " ".join(text.split())
    at = 0
    for number, segment in enumerate(pattern.segments):
        wanted = segment.replace(WORD, " ").strip() if number == 0 else segment.replace(WORD, " ")
        found = flat.find(wanted, at)
        while number == 0 and found > 0 and (flat[found - 1].isalnum() or flat[found - 1] in "_-."):
            found = flat.find(wanted, found + 1)
        if found < 0:
            return False
        at = found + len(wanted)
    return True


def in_words(pattern: ArgvPattern, words: tuple[str, ...]) -> bool:
    """Whether the pattern's literal words occur in order among `words`; a program counts by its last path component."""
    wanted = pattern.words
    if not wanted:
        return False
    position = 0
    for word in words:
        if word == wanted[position] or (position == 0 and word.rpartition("/")[2] == wanted[0]):
            position += 1
            if position == len(wanted):
                return True
    return False


class Place(NamedTuple):
    """What relative paths in rules are relative to. All absolute and lexical."""

    cwd: str
    workspace: str
    home: str


def path_globs(content: str, project: str | None, place: Place, *, tightens: bool) -> tuple[str, ...]:
    """The absolute path globs that the content of a `Read(…)` or `Edit(…)` rule means.

    `//` is the root of the file system, `~/` home, `/` the project of the settings file; else it is relative to the
    workspace. A rule that tightens is read widely: relative to the current directory as well, a bare name at any depth,
    and a directory's name means all below it.
    """
    if content.startswith("//"):
        bases: tuple[str, ...] = ("",)
        rest = content[1:]
    elif content == "~" or content.startswith("~/"):
        bases, rest = (as_glob(place.home),), content[1:]
    elif content.startswith("/"):
        bases, rest = (as_glob(project or place.workspace),), content
    else:
        rest = content[2:] if content.startswith("./") else content
        bases = (as_glob(place.workspace),)
        if tightens:
            bases = tuple(dict.fromkeys((as_glob(place.workspace), as_glob(place.cwd))))
            if "/" not in rest.rstrip("/") and rest != "**":
                bases = tuple(f"{base}/**" for base in bases)
    if rest.endswith("/"):
        rest += "**"
    out = [normalize(f"{base}/{rest}") for base in bases]
    if tightens:
        out += [f"{glob}/**" for glob in out if not glob.endswith("/**")]
    return tuple(out)


def as_glob(path: str) -> str:
    """A literal path as a glob that matches only itself."""
    return "".join("\\" + char if char in "*?[\\" else char for char in path) if is_glob(path) or "\\" in path else path


def path_hit(globs: tuple[str, ...], target: str, *, pattern: bool, tree: bool) -> bool:
    """Whether a rule that tightens speaks of `target`: any path both can mean; `tree` adds everything below it."""
    if not pattern and not tree:
        return _matched(globs, target)
    glob = target if pattern else as_glob(target)
    return any(path_overlaps(one, glob) or (tree and path_overlaps(one, f"{glob}/**")) for one in globs)


def _matched(globs: tuple[str, ...], path: str) -> bool:
    """Whether one of the globs matches a literal path."""
    names = path.split("/")
    return any(_literal_names(one).issubset(names) and path_overlaps(one, as_glob(path)) for one in globs)


@lru_cache(maxsize=1024)
def _literal_names(glob: str) -> frozenset[str]:
    """The components of a path glob that hold no pattern, which every path that it matches has: a quick no for most."""
    return frozenset(name for name in glob.split("/") if not is_glob(name) and "\\" not in name)


def literal_name(glob: str) -> str | None:
    """The last component of a path glob that holds no pattern: a name that every path which it matches has."""
    names = [name for name in glob.split("/") if name in _literal_names(glob)]
    return names[-1] if names and names[-1] else None


def path_covered(globs: tuple[str, ...], target: str, *, pattern: bool, tree: bool) -> bool:
    """Whether a rule that allows covers every path that `target` can mean."""
    if not pattern and not tree:
        return _matched(globs, target)
    known = literal_prefix(target) if pattern else target
    return any(
        (one == target and not tree)
        or (one.endswith("/**") and not is_glob(one[:-3]) and is_within(known, normalize(one[:-3] or "/")))
        for one in globs
    )


def host_of(target: str) -> str:
    """The host of a network target (`host`, `host:port`, `[v6]:port`), lower-case, without a trailing dot."""
    target = target.casefold()
    if target.startswith("["):
        return target[1:].partition("]")[0]
    if target.count(":") == 1:
        target = target.partition(":")[0]
    return target.rstrip(".")


def host_matches(domain: str, target: str, *, tightens: bool) -> bool:
    """Whether a `domain:` of a rule speaks of a network target. `*.x` means hosts below x; a rule that tightens always
    means those too."""
    host = host_of(target)
    if domain == "*":
        return True
    if domain.startswith("*."):
        return host.endswith(domain[1:]) or (tightens and host == domain[2:])
    return host == domain or (tightens and host.endswith("." + domain))
