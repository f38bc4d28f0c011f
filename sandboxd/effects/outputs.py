# SPDX-License-Identifier: GPL-3.0-or-later
"""Substitutions and pipes whose output begins with no dash, whatever the files are: `$(git rev-parse HEAD)` can be no option.

A branch may be called `--output=x`, so what prints names is not here. To add a command: its whole text as a pattern, and why
its output never begins with a dash, not even when it fails.
"""

from __future__ import annotations

import re
from typing import Protocol

from sandboxd.model import Part, PartKind, Word, WordFlag

_VARIABLE, _SUBSTITUTION, _LITERAL = PartKind.VARIABLE, PartKind.SUBSTITUTION, PartKind.LITERAL
_EXPANDS = frozenset((WordFlag.VARIABLE, WordFlag.SUBSTITUTION))

# A revision as it is written; `rev-parse` prints it back when it does not know it.
_REV = r"""(?:[A-Za-z0-9_.@/][\w.@/{}^~:-]*|'[A-Za-z0-9_.@/][\w.@/{}^~:-]*'|"[A-Za-z0-9_.@/][\w.@/{}^~:-]*")"""
_NAME = r"[A-Za-z0-9_][\w.+-]*"
_PATTERN = r"""(?:[A-Za-z0-9_.]+|\^|''|'[^'\n-][^'\n]*'|""|"[^"$`\\\n-][^"$`\\\n]*")"""
_FILE = r"""(?:[\w./~][\w./-]*|"\$\w+"|"[\w./][\w./-]*")"""
# Arguments of `docker ps` and `docker images` among which there is `-q`: it prints the numbers of containers and images.
_QUIETLY = r"""(?=(?:\s+\S+)*?\s+(?:-[al]*q[alf]*|--quiet)(?:\s|\Z))
  (?:\s+(?:-[alq]+|--all|--quiet|--latest|--no-trunc|(?:-[alq]*f|--filter)(?:\s+|=)(?:[\w.:/-]+=[\w.:/-]+|'[^'\s]*'|"[^"$`\\\s]*")))+"""
# One word without blanks: object names, numbers, a path of PATH. Several lines of them are several such words.
_WORDS = re.compile(
    rf"""\s*(?:
      git\s+(?:--no-pager\s+)?(?:
        rev-parse(?:\s+(?:--short(?:=\d+)?|--verify|-q|--quiet))*\s+{_REV}
        | merge-base(?:\s+(?:-a|--all|--octopus|--fork-point))*(?:\s+{_REV}){{1,3}}
        | rev-list(?:\s+(?:-n\s*\d+|-\d+|--max-count=\d+|--max-parents=0|--all|--no-merges|--merges
          |--first-parent|--reverse|{_REV}))*
        | log(?:\s+(?:-\d+|-n\s*\d+|--reverse|--all|--merges|--no-merges|--first-parent))*
          \s+--(?:pretty|format)=['"]?(?:format:)?%[hHtT]['"]?
          (?:\s+(?:-\d+|-n\s*\d+|--reverse|--all|--merges|--no-merges|--first-parent))*(?:\s+{_REV})?
        | hash-object\s+{_FILE}
      )
      | (?:which|command\s+-v|type\s+-[pP])\s+{_NAME}
      | date(?:\s+-u)?\s+["']?\+(?:%[FYmdHMSsTyj][\w:.-]*)+["']?
      | pgrep(?:\s+-[fxnoivu])*\s+{_NAME} | pidof(?:\s+-[sx])*\s+{_NAME} | lsof\s+-(?:ti|t\s+-i):?\s*:?\d+
      | nproc | arch | uname\s+-[mrsp] | id\s+-[ug]
      | wc\s+-[lcwm]\s*<\s*{_FILE}
      | docker\s+(?:ps|container\s+ls|images|image\s+ls){_QUIETLY}
      | (?!.*\|\|)[^#;&()`\n\\]*(?<!>)\|\s*wc\s+-[lcwm](?:\s*\|\s*tr\s+-d\s+(?:'\ '|"\ "|'\[:space:\]'))?
    )(?:\s+2>\s*/dev/null)?(?:\s*\|\s*(?:head|tail)\s+-(?:n\s*)?\d+)?\s*\Z""",
    re.X,
)
# What of them is a decimal number or nothing: arithmetic finds no name in it.
_NUMBERS = re.compile(
    rf"""\s*(?:
      wc\s+-[lcwm]\s*<\s*{_FILE}
      | (?!.*\|\|)[^#;&()`\n\\]*(?<!>)\|\s*wc\s+-[lcwm](?:\s*\|\s*tr\s+-d\s+(?:'\ '|"\ "|'\[:space:\]'))?
      | (?!.*\|\|)[^#;&()`\n\\]*(?<!>)\|\s*grep\s+-(?:c|ic|ci|vc|cv|cE|Ec|cF)\s+{_PATTERN}
      | grep\s+-(?:c|ic|ci|vc|cv|cE|Ec|cF)\s+{_PATTERN}\s+[\w./][\w./-]*
      | date(?:\s+-u)?(?:\s+(?:-d\s*|--date[=\s])(?:'[^'\n]*'|"[^"$`\\\n]*"|@?\w[\w-]*))?\s+["']?\+(?:%[smdHMSYj]|%s%3?N)["']?
      | stat\s+-c\s*["']?%[sYXZWhugi]["']?\s+{_FILE}
      | git\s+rev-list\s+--count\s+{_REV}
      | nproc(?:\s+--all)? | id\s+-[ug] | tput\s+(?:cols|lines) | pgrep\s+-c\s+{_NAME}
    )(?:\s+2>\s*/dev/null)?\s*\Z""",
    re.X,
)
# One path that begins with `/` or is `.git`; its blanks are kept only by quotes.
_PATHS = re.compile(
    rf"""\s*(?:pwd(?:\s+-[LP])?
      | git\s+rev-parse\s+(?:--show-toplevel|--git-dir|--absolute-git-dir|--git-common-dir)
      | (?:realpath|readlink\s+-[fem])\s+{_FILE}
    )(?:\s+2>\s*/dev/null)?\s*\Z""",
    re.X,
)
_PLACES = frozenset(("PWD", "HOME"))
# Arguments of find: starting points that begin with no dash, then tests; no action but `-print0` and `-prune`.
_TEST = r"""(?:-(?!f?ls\b|ok|exec|f?print|files)[a-z]+
  |!|\\[()]|'[^'\n-][^'\n]*'|"[^"$`\\\n-][^"$`\\\n]*"|[+-]?\d\w*|[A-Za-z][\w.,/]*)"""
_FOUND = re.compile(
    rf"""\s*find(?:\s+-[LHP])*(?:\s+[\w./~][\w./-]*)*(?:\s+{_TEST})*\s+-print0(?:\s+2>\s*/dev/null)?
    (?:\s*\|\s*sort\s+-z)?\s*\Z""",
    re.X,
)
# The programs that the patterns above run: none may be a function of the text.
_PROGRAMS = frozenset(
    """
    git pgrep pidof lsof which command type date nproc arch uname id wc tr grep pwd realpath readlink docker stat tput head tail
    find sort xargs
    """.split()  # noqa: SIM905  as they stand above
)


class Known(Protocol):
    """What is certain of the text around (`variables.Names`). `steady`: HOME and PWD have the values that the shell gave them."""

    @property
    def functions(self) -> frozenset[str]: ...
    @property
    def steady(self) -> bool: ...
    @property
    def words(self) -> frozenset[str]: ...
    @property
    def solid(self) -> frozenset[str]: ...
    @property
    def starts(self) -> frozenset[str]: ...


def settle(words: tuple[Word, ...], known: Known) -> tuple[Word, ...]:
    """The words, those marked PLAIN that begin with no dash whatever they become."""
    return tuple([_settled(word, known) if word.flags and not word.values else word for word in words])


def prints_words(part: Part, functions: frozenset[str]) -> bool:
    """Whether it is `$!` or a substitution that prints words without blanks and without a dash in front, or nothing."""
    if part.kind is _VARIABLE:
        return part.text == "!" and not part.op
    return part.kind is _SUBSTITUTION and functions.isdisjoint(_PROGRAMS) and _WORDS.match(part.text) is not None


def prints_number(part: Part, functions: frozenset[str]) -> bool:
    """Whether it is a substitution that prints a decimal number, or nothing."""
    return part.kind is _SUBSTITUTION and is_number(part.text, functions)


def is_number(text: str, functions: frozenset[str]) -> bool:
    """Whether what `$(text)` prints is a decimal number, or nothing."""
    return functions.isdisjoint(_PROGRAMS) and _NUMBERS.match(text) is not None


def stream(text: str, functions: frozenset[str]) -> str:
    """What comes through a pipe from the commands in `text`: "words" as of `prints_words`, "paths" that begin with no dash, each
    closed by a NUL, or "" for anything."""
    if not functions.isdisjoint(_PROGRAMS):
        return ""
    return "words" if _WORDS.match(text) is not None else "paths" if _FOUND.match(text) is not None else ""


def prints_path(part: Part, functions: frozenset[str]) -> bool:
    """Whether it is a substitution that prints one path that begins with no dash, or nothing."""
    return part.kind is _SUBSTITUTION and functions.isdisjoint(_PROGRAMS) and _PATHS.match(part.text) is not None


def _settled(word: Word, known: Known) -> Word:
    if _EXPANDS.isdisjoint(word.flags):
        return word
    splits = WordFlag.SPLITS in word.flags
    parts = word.parts
    for at, part in enumerate(parts):
        if part.kind is _LITERAL:
            if at == 0 and (not part.text or part.text[0] in "-+"):
                return word
            continue
        if at == 0:
            empty = _start(part, known)
            if empty is None:
                return word
            after = parts[1] if len(parts) > 1 else None
            if empty and after is not None and (after.kind is not _LITERAL or after.text[:1] in ("", "-", "+")):
                return word
        elif not splits:
            break
        if splits and not (part.counts or _words(part, known) or (at and prints_number(part, known.functions))):
            return word
    flags = word.flags | {WordFlag.PLAIN}
    if splits and all(
        part.kind is _LITERAL or part.counts or (part.kind is _VARIABLE and part.text in known.solid) for part in parts
    ):
        flags -= {WordFlag.SPLITS}
    return Word(word.span, parts, (), flags)


def _start(part: Part, known: Known) -> bool | None:
    """Whether the expansion may be empty, when it certainly begins with no dash; else None."""
    if part.kind is _VARIABLE and not part.op:
        if part.text in _PLACES and known.steady:
            return False
        if part.quoted and part.text in known.starts:
            return True
    if part.counts:
        return False
    if _words(part, known) or (part.quoted and prints_path(part, known.functions)):
        return True
    return None


def _words(part: Part, known: Known) -> bool:
    if part.kind is _VARIABLE and not part.op and part.text in known.words:
        return True
    return prints_words(part, known.functions)
