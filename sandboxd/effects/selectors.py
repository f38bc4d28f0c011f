# SPDX-License-Identifier: GPL-3.0-or-later
"""What commands that print names say of the names they print: `find -name '.g*'`, `ls -a | grep env`, `git ls-files '*.env'`.

The names are evidence for what takes them (`cat $(…)`, `| xargs rm`), never certainty: each is a name or a glob, with `**/`
in front where a star in it can stand for a leading dot. To add a command: a function here and its name in _SAYS.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from sandboxd.globs import is_glob

MAX_TEXT = 2_000  # characters of a substitution that is read
_MAX_NAMES = 32
_NOT = frozenset(("!", "-not"))
_NAMES = frozenset(("-name", "-path", "-wholename"))
_NAMES_FOLDED = frozenset(("-iname", "-ipath", "-iwholename"))
_REGEX = frozenset(("-regex", "-iregex"))
_TOKEN = re.compile(r"""(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\|;&<>()])+|[|;&<>()]""", re.S)
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)""", re.S)
# A pattern of awk or sed that stands alone, or before what prints.
_ADDRESS = re.compile(r"\s*/((?:[^/\\]|\\.)+)/\s*(?:p|\{\s*print[^}]*\})?\s*\Z")
_REGEX_PIECE = re.compile(r"\.\*|\\[./-]|\[[^\]]*\]|\.|[\w/@ -]+|\\?.", re.S)
_FD_VALUES = frozenset(("-t", "--type", "-e", "--extension", "-d", "--max-depth", "-E", "--exclude", "-j", "-S", "-c", "--color"))


@lru_cache(maxsize=512)
def printed(text: str) -> tuple[str, ...]:
    """What the pipeline in `text` says of the names that it prints."""
    if len(text) > MAX_TEXT:
        return ()
    out: list[str] = []
    stage: list[str] = []
    before: list[str] = []
    for mark in (*_TOKEN.findall(text), "|"):
        if mark not in ("|", ";", "&", "<", ">", "(", ")"):
            stage.append(_QUOTED.sub(_unquoted, mark))
            continue
        if before and stage and stage[0] not in _KEEPS:
            return ()  # it makes other names of them
        out += said(stage, before)
        before, stage = stage if mark == "|" else [], []
        if len(out) >= _MAX_NAMES:
            break
    return tuple(dict.fromkeys(out[:_MAX_NAMES]))


def said(words: Sequence[str | None], before: Sequence[str | None] = ()) -> list[str]:
    """What one command says of the names that it prints; `before` is the command that it filters. None is an unknown word."""
    says = _SAYS.get(words[0] or "") if words else None
    return [] if says is None else says([word or "" for word in words[1:]], bool(before) and _hides(before))


def walked(glob: str) -> str:
    """A glob of names anywhere in a tree, where a leading star can match a dot."""
    return f"**/{glob}" if is_glob(glob) else glob


@lru_cache(maxsize=512)
def regex_names(pattern: str) -> tuple[str, ...]:
    """Globs of the names in which a regular expression finds something, wider where it holds more than literal text."""
    out = []
    for each in re.split(r"\\?\|", pattern)[:_MAX_NAMES]:
        text = each.removeprefix("(").removesuffix(")")
        first, last = not text.startswith("^"), not text.endswith("$") or text.endswith("\\$")
        text = text.removeprefix("^").removesuffix("" if last else "$")
        body = "".join(map(_as_glob, _REGEX_PIECE.findall(text))).removeprefix("./")
        out.append(("*" if first else "") + body + ("*" if last else ""))
    return tuple(out)


def _as_glob(piece: str) -> str:
    if piece == ".":
        return "?"
    if piece[0] in "[" and len(piece) > 1:
        return piece.replace("[^", "[!")
    if piece[0] == "\\" and len(piece) == 2 and not piece[1].isalnum():
        return piece[1]
    return piece if piece[0].isalnum() or piece[0] in "_/@ -" else "*"


def _unquoted(match: re.Match[str]) -> str:
    single, double, escaped = match.groups()
    return single if single is not None else escaped if escaped is not None else double


def _hides(before: Sequence[str | None]) -> bool:
    """Whether the names that are filtered begin with no dot: those of ls without -a."""
    return before[0] == "ls" and not any(word and re.match(r"-[^-]*[aAf]|--a", word) for word in before[1:])


def _find(words: list[str], hidden: bool) -> list[str]:
    if "-prune" in words:
        return []
    out: list[str] = []
    for word in words:
        if word[:1] in ("-", "!", "("):
            break
        if word not in (".", "./", ".."):
            out.append(word)
    for at, word in enumerate(words[:-1]):
        if at and words[at - 1] in _NOT:
            continue
        if word in _NAMES:
            out.append(walked(words[at + 1]))
        elif word in _NAMES_FOLDED:
            out.append(walked(words[at + 1].lower()))
        elif word in _REGEX:
            out += map(walked, regex_names(f"^{words[at + 1].removeprefix('^').removesuffix('$')}$"))
        elif word == "-samefile":
            out.append(words[at + 1])
    return out


def _fd(words: list[str], hidden: bool) -> list[str]:
    plain = [word for at, word in enumerate(words) if word[:1] != "-" and not (at and words[at - 1] in _FD_VALUES)]
    if not plain:
        return []
    globs = any(word in ("-g", "--glob") for word in words)
    return [walked(name) for name in ((plain[0],) if globs else regex_names(plain[0]))] + plain[1:]


def _ls(words: list[str], hidden: bool) -> list[str]:
    return [word for word in words if word[:1] != "-" and is_glob(word)]


def _grep(words: list[str], hidden: bool) -> list[str]:
    """What is left of lines; a pattern that is turned round says nothing, and one that is sought in files not of their names."""
    if any(word in ("--recursive", "--include") or re.match(r"-[A-Za-z]*[rR]|--include=", word) for word in words):
        return _rg(words, hidden)
    pattern = None
    at = files = 0
    while at < len(words):
        word = words[at]
        if word == "--invert-match" or (word[:1] == "-" and word[1:2] != "-" and "v" in word):
            return []
        if word in ("-e", "--regexp") and at + 1 < len(words):
            pattern = words[at + 1]
            at += 1
        elif word[:9] == "--regexp=":
            pattern = word[9:]
        elif word[:1] != "-" and pattern is None:
            pattern = word
        elif word[:1] != "-":
            files += 1
        at += 1
    return [] if files or not pattern else _filtered(pattern, hidden)


def _script(words: list[str], hidden: bool) -> list[str]:
    match = next((match for word in words if (match := _ADDRESS.match(word)) is not None), None)
    return [] if match is None else _filtered(match[1], hidden)


def _filtered(pattern: str, hidden: bool) -> list[str]:
    return [name if hidden else walked(name) for name in regex_names(pattern)]


def _git(words: list[str], hidden: bool) -> list[str]:
    return [walked(word) for word in words[1:] if word[:1] != "-"] if words[:1] == ["ls-files"] else []


def _rg(words: list[str], hidden: bool) -> list[str]:
    """`rg --files -g GLOB`, `rg -l X -g GLOB`."""
    out = []
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in ("-g", "--glob", "--iglob", "--include"):
            glob = value if equals else words[at + 1] if at + 1 < len(words) else ""
            if glob and glob[0] != "!":
                out.append(walked(glob))
    return out


def _dirname(words: list[str], hidden: bool) -> list[str]:
    return [folder for word in words if "/" in word for folder in (word.rstrip("/").rpartition("/")[0],) if folder]


def _echo(words: list[str], hidden: bool) -> list[str]:
    return [word for word in words if word[:1] not in ("-", "$", "`") and "%" not in word and "\\" not in word]


_SAYS = {
    "find": _find,
    "fd": _fd,
    "fdfind": _fd,
    "ls": _ls,
    "grep": _grep,
    "egrep": _grep,
    "fgrep": _grep,
    "awk": _script,
    "gawk": _script,
    "sed": _script,
    "git": _git,
    "rg": _rg,
    "dirname": _dirname,
    "echo": _echo,
    "printf": _echo,
}
# What lets lines through as they are.
_KEEPS = frozenset((*_SAYS, "head", "tail", "sort", "uniq", "cat", "tee", "xargs"))
