# SPDX-License-Identifier: GPL-3.0-or-later
"""What the variables of one text can hold, where its assignments tell: numbers, words, text without a dash in front.

A name is told of only when every place that can set it is an assignment or a loop whose values are known to be of the kind, and
nothing in the text speaks of it before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sandboxd.effects import outputs
from sandboxd.effects.environment import Environment
from sandboxd.model import CommandKind, Part, PartKind, Script, Subcommand, Word, WordFlag

_LITERAL, _GLOB, _ARITHMETIC, _VARIABLE = PartKind.LITERAL, PartKind.GLOB, PartKind.ARITHMETIC, PartKind.VARIABLE
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:@%,=^][A-Za-z0-9_./:@%+,=^-]*\Z")
# Text before the first command that is no assignment of a number or a substitution: these are certainly made, however the
# substitutions end; behind `&&` nothing is certain, nor is what a single `&` may put into the background.
_INSIDE = r"""\$\((?![^)]*\bcase\b)(?:[^()'"`\\\n#;&]|'[^'\\\n]*')*\)"""
_GIVEN = rf"""[A-Za-z_]\w*=(?:-?[0-9]{{1,18}}|\$[?#]|{_INSIDE}|"{_INSIDE}")(?=[ \t;\n&])"""
_SEVERAL = rf"{_GIVEN}(?:[ \t]+{_GIVEN})*[ \t]*"
# Commands of plain words may stand before them and between, in lists that end: what comes behind is run, or nothing is. No word
# and no comment looks like an assignment.
_RESERVED = r"(?!(?:if|then|else|elif|fi|for|while|until|do|done|case|esac|in|select|function|time|coproc)\b)"
_TEXT = r"""'(?:[^'\n=]|(?<!\w)=)*+'|"(?:[^"$`\\\n=]|(?<!\w)=)*+\""""
_COMMAND = rf"{_RESERVED}[A-Za-z_][\w./+-]*+(?:[ \t]++(?:[\w./,:@%+*~-]++|{_TEXT}))*+[ \t]*+(?:2>&1|2>/dev/null)?[ \t]*+"
_LIST = rf"{_COMMAND}(?:(?:\|\|?|&&)[ \t]*+{_COMMAND})*+"
_LEADING = re.compile(
    rf"\s*+(?>(?:{_SEVERAL}|{_LIST}|\#[^\n=]*+)(?:;|\n)\s*+)*+(?:{_SEVERAL}(?:;|\n|&&(?!(?s:.*)(?<![&>])&(?![&>]))))?"
)
_SUBSTITUTION = re.compile(_INSIDE)
_LEADING_NAME = re.compile(r"([A-Za-z_]\w*)=")
# The head of a loop that the text begins with, over words and substitutions, no quotes: in its body the variable is not empty.
_LOOP = re.compile(r"""\s*for\s+([A-Za-z_]\w*)\s+in\s(?:[^;&|\n()`'"\\$]|\$\([^;\n()`'"\\]*\))*[;\n]\s*do\s""")
# An expression of names, numbers and operators: no subscript, no substitution, no text.
_EXPRESSION = re.compile(r"(?:[\s0-9+*/%()<>=!&|?:,~^-]|\$\{[A-Za-z_]\w*\}|\$?[A-Za-z_]\w*)*\Z")
_NAME = re.compile(r"[A-Za-z_]\w*")
# What stands behind the name in `${list[i]}`, `${list[$i]}`, `${list[i-1]}`.
_ELEMENT = re.compile(r"\[\$?([A-Za-z_]\w*)(?:[+-]\d+)?\Z")
# A substitution that stands alone in an expression: beside it is nothing that it could make a name with.
_INNER = re.compile(r"(?<![\w$}#])\$\(([^()]*)\)(?![\w$#])")
_MAX_NAMES = 64  # each is looked for in the whole text; of more nothing is known
# What gives a variable its value beside an assignment, or runs text that may.
_SETTERS = frozenset(
    "read printf declare typeset local export readonly unset mapfile readarray getopts let wait coproc compgen".split()  # noqa: SIM905  a list of words
)
_PRINTS = frozenset(("echo", "printf"))
# One whole string in quotes, in which nothing is run or computed.
_STRING = re.compile(r"""(?:"[^"`(\[{\\]*"|'[^']*')\Z""")
_COMPARISONS = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))
_ELSEWHERE = frozenset(("eval", "trap", "source", "."))
_THROUGH = frozenset(("command", "builtin"))
# What bash sets by itself, or lets nobody set.
_OWN = frozenset(
    """_ COLUMNS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID GROUPS HISTCMD HOME HOSTNAME LINENO LINES MAPFILE OLDPWD OPTARG OPTERR
    OPTIND PIPESTATUS PPID PWD RANDOM REPLY SECONDS SHLVL SRANDOM UID""".split()  # noqa: SIM905  a list of words
)


class Names(NamedTuple):
    """`numbers` hold integers; `words` no blank, no glob and no dash in front; `solid` are words that are never
    empty; `starts` have no dash in front. `steady`: see outputs."""

    functions: frozenset[str] = frozenset()
    steady: bool = False
    numbers: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    solid: frozenset[str] = frozenset()
    starts: frozenset[str] = frozenset()


def names(script: Script, environment: Environment, functions: frozenset[str], steady: bool) -> Names:
    """What is certain of the variables of `script`. `functions` are all that may be called."""
    around = Names(functions, steady)
    commands = script.subcommands
    found = {a.name for command in commands for a in command.assignments if not command.argv or command.kind is CommandKind.WORDS}
    found = {name for name in found if environment.ordinary(name) and name not in _OWN}
    # A function of a text around may set anything; so may what `eval` reads, at any time.
    if not 0 < len(found) <= _MAX_NAMES or not functions.issubset(script.functions) or any(map(_hides, commands)):
        return around
    for command in commands:
        found -= _named(command, found)
    text = script.text.replace("\\\n", "")
    found = {name for name in found if _first(text, name)}
    leading = _LEADING.match(script.text)
    certain = found & set(_LEADING_NAME.findall(_SUBSTITUTION.sub("0", leading[0]))) if leading is not None else set()
    numbers = _kept(certain, commands, lambda word, kept: _number(word, kept, functions))
    rest = {name for name in found if _sets(text, name) == _assignments(commands, name) or _only_says(script, text, name)}
    words = _kept(rest, commands, lambda word, _: _of_words(word, around))
    starts = _kept(rest, commands, lambda word, _: _of_starts(word, around))
    return Names(functions, steady, frozenset(numbers), frozenset(words), _solid(text) & words, frozenset(starts | words))


def computes(command: Subcommand, around: Names) -> bool:
    """Whether all that the command evaluates is arithmetic on numbers."""
    if any(a.elements or a.subscript is not None for a in command.assignments):
        return False
    values = [a.value for a in command.assignments if a.value is not None]
    parts = [part for word in (*command.argv, *values) if WordFlag.EVALUATES in word.flags for part in word.parts]
    if command.kind is CommandKind.ARITHMETIC:
        parts = [Part(_ARITHMETIC, part.text) for word in command.argv[1:] for part in word.parts]
    elif any(WordFlag.EVALUATES in redirect.target.flags for redirect in command.redirects):
        return False
    return any(part.kind is _ARITHMETIC or part.op for part in parts) and all(
        part.kind is _LITERAL
        or (part.kind is _ARITHMETIC and _safe(part.text, around.numbers, around.functions))
        or _plain(part)
        or _element(part, around.numbers)
        for part in parts
    )


def compares(command: Subcommand, around: Names) -> bool:
    """Whether every operand of `-eq` and its like in a `[[ … ]]` is a number: nothing is evaluated then."""
    words = command.argv
    return all(
        _operand(words[at - 1], around) and _operand(words[at + 1], around)
        for at, word in enumerate(words)
        if word.value in _COMPARISONS and 1 < at < len(words) - 1
    )


def _operand(word: Word, around: Names) -> bool:
    if word.values:
        return all(map(_INTEGER.match, word.values))
    if len(word.parts) != 1:
        return False
    part = word.parts[0]
    if part.kind is _ARITHMETIC:
        return _safe(part.text, around.numbers, around.functions)
    return part.counts or (_plain(part) and part.text in around.numbers) or outputs.prints_number(part, around.functions)


def _kept(found: set[str], commands: tuple[Subcommand, ...], fits: object) -> set[str]:
    """The largest part of `found` in which every value fits; what fits may depend on that part."""
    assert callable(fits)
    kept = set(found)
    while True:
        lost = {
            name
            for command in commands
            for name, values in _values(command)
            if name in kept and (values is None or not all(fits(word, kept) for word in values))
        }
        if not lost:
            return kept
        kept -= lost


def _values(command: Subcommand) -> Iterable[tuple[str, tuple[Word, ...] | None]]:
    for assignment in command.assignments:
        if assignment.subscript is not None or assignment.elements or assignment.append:
            yield assignment.name, None
        elif assignment.value is not None:
            yield assignment.name, (assignment.value,)
        else:
            yield assignment.name, command.argv if command.kind is CommandKind.WORDS and command.argv else None


def _number(word: Word, numbers: set[str], functions: frozenset[str]) -> bool:
    if word.values:
        return all(map(_INTEGER.match, word.values))
    if len(word.parts) != 1:
        return False
    part = word.parts[0]
    return (
        part.counts
        or outputs.prints_number(part, functions)
        or (part.kind is _ARITHMETIC and _safe(part.text, numbers, functions))
    )


def _safe(text: str, numbers: set[str] | frozenset[str], functions: frozenset[str]) -> bool:
    if "$(" in text:
        text = _INNER.sub(lambda match: "1" if outputs.is_number(match[1], functions) else match[0], text)
    return _EXPRESSION.match(text) is not None and numbers.issuperset(_NAME.findall(text))


def _plain(part: Part) -> bool:
    return part.kind is _VARIABLE and not part.op


def _element(part: Part, numbers: frozenset[str]) -> bool:
    match = _ELEMENT.match(part.op) if part.kind is _VARIABLE and not part.operand else None
    return match is not None and match[1] in numbers


def _of_words(word: Word, around: Names) -> bool:
    if word.values:
        return all(map(_PLAIN_WORD.match, word.values))
    return len(word.parts) == 1 and (word.parts[0].counts or outputs.prints_words(word.parts[0], around.functions))


def _of_starts(word: Word, around: Names) -> bool:
    if word.values:
        return all(value[:1] not in ("-", "+", "") for value in word.values)
    first = word.parts[0]
    if (
        first.kind is _LITERAL
        and first.text[:1] not in ("-", "+", "")
        and all(part.kind in (_LITERAL, _GLOB) for part in word.parts)
    ):
        return True
    return _of_words(word, around) or (len(word.parts) == 1 and outputs.prints_path(first, around.functions))


def _hides(command: Subcommand) -> bool:
    """Whether it runs text of its own, or a builtin that sets variables behind another word."""
    head = _head(command)
    if head not in _THROUGH:
        return head in _ELSEWHERE
    return any(word.value is None or word.value in _SETTERS or word.value in _ELSEWHERE for word in command.argv[1:])


def _sets(text: str, name: str) -> int:
    """How often the text may give the name a value, arithmetic and elements included."""
    return len(re.findall(rf"(?:\+\+|--)\s*{name}\b|(?<![A-Za-z0-9_$]){name}\s*(?:\[|\+\+|--|[-+*/%&|^<>]*=(?!=))", text))


def _only_says(script: Script, text: str, name: str) -> bool:
    """Whether all else in the text that looks like one of its assignments stands in strings that are printed: `echo "rc=$rc"`."""
    spans = {word.span for command in script.subcommands if _head(command) in _PRINTS for word in command.argv[1:]}
    printed = (script.text[start:end] for start, end in spans)
    said = sum(_sets(string, name) for string in printed if _STRING.match(string))
    return said > 0 and _sets(text, name) - said == _assignments(script.subcommands, name)


def _assignments(commands: tuple[Subcommand, ...], name: str) -> int:
    """How many assignments stand in the text; one that is listed twice is one."""
    assigned = (command.assignments for command in commands if command.kind is not CommandKind.WORDS)
    return len({a.span for group in assigned for a in group if a.name == name})


def _head(command: Subcommand) -> str | None:
    return command.argv[0].value if command.argv else None


def _texts(word: Word) -> tuple[str, ...]:
    return word.values or tuple(part.text for part in word.parts)


def _named(command: Subcommand, found: set[str]) -> set[str]:
    """Those that the command may set by their name. `printf` sets one with -v only."""
    head, words = _head(command), command.argv[1:]
    if head not in _SETTERS or (head == "printf" and words and (words[0].value or "-")[0] != "-"):
        return set()
    if head == "wait":  # behind -p, and what is unknown there is no option that could be missed
        words = tuple(word for word in words if word.values or any(part.kind is _LITERAL for part in word.parts))
    return {name for word in words for text in _texts(word) for name in found if _says(text, name)}


def _says(text: str, name: str) -> bool:
    """Whether a word of a setter may name the variable: options hold it without a blank (`-vname`)."""
    return name in text if text[:1] in ("-", "+") else name in _NAME.findall(text)


def _solid(text: str) -> frozenset[str]:
    """The variable of the loop that the text begins with, when nothing but the loop's body speaks of it."""
    loop = _LOOP.match(text)
    if loop is None:
        return frozenset()
    said, end = re.compile(rf"(?<![A-Za-z0-9_]){loop[1]}(?![A-Za-z0-9_])"), text.find("done", loop.end())
    body = text[loop.end() : end]
    sets = _sets(body, loop[1]) or re.search(rf"\bfor\s+{loop[1]}\b|\bselect\b", body)
    return frozenset() if sets or len(said.findall(text)) != 1 + len(said.findall(body)) else frozenset((loop[1],))


def _first(text: str, name: str) -> bool:
    """Whether the first that the text says of the name is an assignment or the head of a loop, and no expansion assigns it."""
    match = re.search(rf"(?<![A-Za-z0-9_]){name}(?![A-Za-z0-9_])", text)
    if match is None or f"{{{name}=" in text or f"{{{name}:=" in text:
        return False
    before = text[: match.start()]
    return text.startswith("=", match.end()) or re.search(r"\bfor\s+\Z", before) is not None


_COUNTING = re.compile(
    r"\s*([A-Za-z_]\w*)\s*=\s*\d+\s*;\s*\1\s*[<>]=?\s*(?:\d+|\$\{#[A-Za-z_]\w*(?:\[[@*]\])?\})\s*;\s*(?:\1\s*(?:\+\+|--|[-+]=\s*\d+)|(?:\+\+|--)\s*\1)\s*\Z"
)


def counter(command: Subcommand) -> str | None:
    """The variable of `for ((i=0; i<3; i++))` when the head is no more than that."""
    word = command.argv[1] if len(command.argv) == 2 else None
    match = _COUNTING.match(word.parts[0].text) if word is not None and len(word.parts) == 1 else None
    return match[1] if match is not None else None


def counters(script: Script, environment: Environment, functions: frozenset[str]) -> frozenset[str]:
    """Counters of counting loops that nothing else in the text can set: arithmetic on them evaluates numbers only."""
    heads = [counter(command) for command in script.subcommands if command.kind is CommandKind.ARITHMETIC]
    found = {name for name in heads if name is not None and environment.ordinary(name) and name not in _OWN}
    # A function of a text around may set anything.
    if len(found) > _MAX_NAMES or not functions.issubset(script.functions):
        return frozenset()
    for command in script.subcommands if found else ():
        if command.kind is CommandKind.WORDS or _hides(command):
            return frozenset()
        found.difference_update(assignment.name for assignment in command.assignments)
        found -= _named(command, found)
    return frozenset(found)


def counted(text: str, counters: frozenset[str]) -> frozenset[str]:
    """Those of the counters that only the head and the body of their loop speak of: there they are numbers."""
    found = set()
    for name in counters:
        said = re.compile(rf"(?<![A-Za-z0-9_]){name}(?![A-Za-z0-9_])")
        heads = list(re.finditer(rf"\bfor\s*\(\(\s*{name}\b[^\n()]*\)\)\s*;?\s*do\s", text))
        if len(heads) == 1:
            loop = text[heads[0].start() : max(text.find("done", heads[0].end()), heads[0].end())]
            if len(said.findall(loop)) == len(said.findall(text)):
                found.add(name)
    return frozenset(found)
