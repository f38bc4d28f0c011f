# SPDX-License-Identifier: GPL-3.0-or-later
"""Substitutions whose output begins with no dash, whatever the files are: `$(git rev-parse HEAD)` can be no option.

A branch may be called `--output=x`, so what prints names is not here. To add a command: its whole text as a pattern, and why
its output never begins with a dash, not even when it fails.
"""

from __future__ import annotations

import re

from sandboxd.model import Part, PartKind, Word, WordFlag

_VARIABLE, _SUBSTITUTION, _LITERAL = PartKind.VARIABLE, PartKind.SUBSTITUTION, PartKind.LITERAL
_EXPANDS = frozenset((WordFlag.VARIABLE, WordFlag.SUBSTITUTION))

# A revision as it is written; `rev-parse` prints it back when it does not know it.
_REV = r"""(?:[A-Za-z0-9_.@/][\w.@/{}^~:-]*|'[A-Za-z0-9_.@/][\w.@/{}^~:-]*'|"[A-Za-z0-9_.@/][\w.@/{}^~:-]*")"""
_NAME = r"[A-Za-z0-9_][\w.+-]*"
_FILE = r"""(?:[\w./~][\w./-]*|"\$\w+"|"[\w./-]*")"""
# One word without blanks: object names, numbers, a path of PATH. Several lines of them are several such words.
_WORDS = re.compile(
    rf"""\s*(?:
      git\s+(?:--no-pager\s+)?(?:
        rev-parse(?:\s+(?:--short(?:=\d+)?|--verify|-q|--quiet))*\s+{_REV}
        | merge-base(?:\s+(?:-a|--all|--octopus|--fork-point))*(?:\s+{_REV}){{1,3}}
        | rev-list(?:\s+(?:-n\s*\d+|-\d+|--max-count=\d+|--max-parents=0|--all|--no-merges|--merges|--first-parent|--reverse))*
          (?:\s+{_REV})*
        | log\s+(?:-1|-n\s*1)\s+--(?:pretty|format)=['"]?(?:format:)?%[hHtT]['"]?(?:\s+{_REV})?
        | hash-object\s+{_FILE}
      )
      | (?:which|command\s+-v|type\s+-[pP])\s+{_NAME}
      | date(?:\s+-u)?\s+["']?\+%[FYmdHMsTyj][\w%:.]*["']?(?:%[FYmdHMsTyj])?["']?
      | nproc | arch | uname\s+-[mrsp] | id\s+-[ug]
      | wc\s+-[lcwm]\s*<\s*{_FILE}
      | (?!.*\|\|)[^;&()`\n\\]*\|\s*wc\s+-[lcwm](?:\s*\|\s*tr\s+-d\s+(?:'\ '|"\ "|'\[:space:\]'))?
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
# The programs that the patterns above run: none may be a function of the text.
_PROGRAMS = frozenset("git which command type date nproc arch uname id wc tr pwd realpath readlink".split())  # noqa: SIM905  as they stand above


def settle(words: tuple[Word, ...], functions: frozenset[str], steady: bool) -> tuple[Word, ...]:
    """The words, those marked PLAIN that begin with no dash whatever they become.

    `steady`: HOME and PWD have the values that the shell gave them, which begin with `/`."""
    if not any(word.flags and not _EXPANDS.isdisjoint(word.flags) and not word.values for word in words):
        return words
    return tuple([_settled(word, functions, steady) for word in words])


def _settled(word: Word, functions: frozenset[str], steady: bool) -> Word:
    if word.values or _EXPANDS.isdisjoint(word.flags):
        return word
    splits = WordFlag.SPLITS in word.flags
    parts = word.parts
    for at, part in enumerate(parts):
        if part.kind is _LITERAL:
            if at == 0 and (not part.text or part.text[0] in "-+"):
                return word
            continue
        if at == 0:
            empty = _start(part, functions, steady)
            if empty is None:
                return word
            after = parts[1] if len(parts) > 1 else None
            if empty and after is not None and (after.kind is not _LITERAL or after.text[:1] in ("", "-", "+")):
                return word
        elif not splits:
            break
        if splits and not (part.counts or _words(part, functions)):
            return word
    return Word(word.span, parts, (), word.flags | {WordFlag.PLAIN})


def _start(part: Part, functions: frozenset[str], steady: bool) -> bool | None:
    """Whether the expansion may be empty, when it certainly begins with no dash; else None."""
    if part.kind is _VARIABLE:
        sure = part.counts or (steady and part.text in _PLACES and not part.op)
        return False if sure else None
    if _words(part, functions):
        return True
    paths = part.kind is _SUBSTITUTION and functions.isdisjoint(_PROGRAMS) and _PATHS.match(part.text) is not None
    return True if paths and part.quoted else None


def _words(part: Part, functions: frozenset[str]) -> bool:
    return part.kind is _SUBSTITUTION and functions.isdisjoint(_PROGRAMS) and _WORDS.match(part.text) is not None
