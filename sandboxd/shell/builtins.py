# SPDX-License-Identifier: GPL-3.0-or-later
"""Builtins that evaluate text or change the shell: the notes they earn and the variables they change.

To add a builtin: write a function `(words, note) -> Change`, put it into HANDLERS under its name, and add rows to
tests/corpus/shell_notes.jsonl. `words` are the resolved words behind the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sandboxd.model.shell import Word, WordFlag

Noter = Callable[[str, str], None]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=", re.DOTALL)
PROMPTS = frozenset(("PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND"))


@dataclass(frozen=True, slots=True)
class Change:
    """What a command does to the shell that runs it. `everything`: it may do anything, now or later."""

    names: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    assigned: tuple[tuple[str, Word], ...] = ()  # `export x=…`; the word is the whole argument
    appended: frozenset[str] = frozenset()
    all_names: bool = False
    everything: bool = False
    moves: bool = False


NOTHING = Change()
ANYTHING = Change(everything=True, moves=True)
_ALL_NAMES = Change(all_names=True)

Handler = Callable[[tuple[Word, ...], Noter], Change]


def _options(words: tuple[Word, ...], with_value: str) -> tuple[list[tuple[str, Word | None]], tuple[Word, ...], bool]:
    """Clustered one-letter options, the operands, and whether all option words were literal."""
    options: list[tuple[str, Word | None]] = []
    index = 0
    certain = True
    while index < len(words):
        value = words[index].value
        if value is None:
            # A dynamic word can be an option only if its text can begin with a dash.
            prefix = words[index].prefix
            certain = certain and bool(prefix) and not prefix.startswith(("-", "+"))
            break
        if value == "--":
            index += 1
            break
        if len(value) < 2 or value[0] not in "-+":
            break
        index += 1
        for position, letter in enumerate(value[1:], 1):
            if letter in with_value and value[0] == "-":
                rest = value[position + 1 :]
                argument: Word | None = words[index - 1] if rest else None
                if rest:
                    assert argument is not None
                    argument = Word(argument.span, argument.parts, (rest,))
                elif index < len(words):
                    argument = words[index]
                    index += 1
                options.append((letter, argument))
                break
            options.append((letter, None))
    return options, words[index:], certain


def _plain_names(words: tuple[Word, ...], note: Noter) -> Change:
    """Words that are variable names: anything else in their place is noted."""
    names: set[str] = set()
    for word in words:
        if not word.values or WordFlag.SPLITS in word.flags:
            note("shell.names_evaluated", "a name that is not literal")
            return _ALL_NAMES
        for value in word.values:
            if not _NAME.match(value):
                note("shell.names_evaluated", value)
                return _ALL_NAMES
            environment(value, note)
            names.add(value)
    return Change(frozenset(names))


def _eval(words: tuple[Word, ...], note: Noter) -> Change:
    if not words:
        return NOTHING
    note("shell.eval", "")
    return ANYTHING


def _source(words: tuple[Word, ...], note: Noter) -> Change:
    note("shell.source", "")
    return ANYTHING


def _trap(words: tuple[Word, ...], note: Noter) -> Change:
    if words and all(word.value in ("-p", "-l") for word in words[:1]):
        return NOTHING
    if words:
        note("shell.trap", "")
        return ANYTHING
    return NOTHING


def _alias(words: tuple[Word, ...], note: Noter) -> Change:
    if any(word.value is None or "=" in word.value for word in words):
        note("shell.alias", "")
        return ANYTHING
    return NOTHING


def _let(words: tuple[Word, ...], note: Noter) -> Change:
    note("shell.let", "")
    return _ALL_NAMES


def _declare(words: tuple[Word, ...], note: Noter) -> Change:
    options, operands, certain = _options(words, "")
    letters = {letter for letter, _ in options}
    if not certain:
        note("shell.names_evaluated", "an option that is not literal")
        return _ALL_NAMES
    if letters & set("inlucA"):
        note("shell.attributes", "".join(sorted(letters & set("inlucA"))))
    if "f" in letters and "x" in letters:
        note("shell.function_export", "")
    return _declared(operands, note, bool(letters & set("inlucrtAag")) or bool(letters & set("f")))


def _declared(operands: tuple[Word, ...], note: Noter, pinned: bool) -> Change:
    names: set[str] = set()
    assigned: list[tuple[str, Word]] = []
    appended: set[str] = set()
    for word in operands:
        text = word.value if word.value is not None else word.prefix
        match = _ASSIGNED.match(text)
        if match is not None:
            name = match.group(1)
            environment(name, note)
            names.add(name)
            if match.group(2):
                appended.add(name)
            else:
                assigned.append((name, word))
        elif word.value is not None and _NAME.match(word.value):
            names.add(word.value)
        else:
            note("shell.names_evaluated", word.value or "a name that is not literal")
            return _ALL_NAMES
    if pinned:
        return Change(pinned=frozenset(names))
    assigned = [(name, word) for name, word in assigned if name not in appended]
    return Change(frozenset(names), assigned=tuple(assigned), appended=frozenset(appended))


def environment(name: str, note: Noter) -> None:
    """Note a lasting change of a variable that bash itself uses for the commands that follow."""
    if name == "PATH":
        note("shell.path_changed", "")
    elif name in PROMPTS:
        note("shell.prompt", name)
    elif name == "IFS":
        note("shell.ifs_changed", "")
    elif name in ("HOME", "CDPATH"):
        note("shell.home_changed", name)


def _export(words: tuple[Word, ...], note: Noter) -> Change:
    options, operands, certain = _options(words, "")
    if not certain:
        note("shell.names_evaluated", "an option that is not literal")
        return _ALL_NAMES
    if any(letter == "f" for letter, _ in options):
        note("shell.function_export", "")
    change = _declared(operands, note, False)
    # A name without a value keeps the value it has.
    return (
        change if change.all_names else Change(change.appended | {name for name, _ in change.assigned}, assigned=change.assigned)
    )


def _readonly(words: tuple[Word, ...], note: Noter) -> Change:
    _, operands, certain = _options(words, "")
    return _declared(operands, note, True) if certain else _noted_all(note)


def _local(words: tuple[Word, ...], note: Noter) -> Change:
    """Outside a function it fails and assigns nothing, so no value is certain after it."""
    change = _declare(words, note)
    return Change(change.names, change.pinned, all_names=change.all_names)


def _read(words: tuple[Word, ...], note: Noter) -> Change:
    options, operands, certain = _options(words, "adinNptu")
    if not certain:
        note("shell.names_evaluated", "an option that is not literal")
        return _ALL_NAMES
    names = tuple(argument for letter, argument in options if letter == "a" and argument is not None)
    return _plain_names(names + operands, note)


def _mapfile(words: tuple[Word, ...], note: Noter) -> Change:
    options, operands, certain = _options(words, "dnOsuCc")
    if not certain:
        note("shell.names_evaluated", "an option that is not literal")
        return _ALL_NAMES
    if any(letter == "C" for letter, _ in options):
        note("shell.callback", "-C")
        return ANYTHING
    return _plain_names(operands, note)


def _getopts(words: tuple[Word, ...], note: Noter) -> Change:
    return _plain_names(words[1:2], note)


def _printf(words: tuple[Word, ...], note: Noter) -> Change:
    if not words:
        return NOTHING
    first = words[0].value
    if first is None:
        prefix = words[0].prefix
        if not prefix and (WordFlag.SPLITS in words[0].flags or not words[0].values):
            note("shell.names_evaluated", "an option that is not literal")
            return _ALL_NAMES
        return NOTHING if prefix and not prefix.startswith("-") else _noted_all(note)
    if first == "-v":
        return _plain_names(words[1:2], note)
    if first.startswith("-v"):
        return _plain_names((Word(words[0].span, words[0].parts, (first[2:],)),), note)
    return NOTHING


def _noted_all(note: Noter) -> Change:
    note("shell.names_evaluated", "an option that is not literal")
    return _ALL_NAMES


def _unset(words: tuple[Word, ...], note: Noter) -> Change:
    _, operands, certain = _options(words, "")
    if not certain:
        return _noted_all(note)
    return _plain_names(operands, note)


def _wait(words: tuple[Word, ...], note: Noter) -> Change:
    options, _, certain = _options(words, "p")
    if not certain:
        return NOTHING if not any(w.value == "-p" for w in words) else _noted_all(note)
    return _plain_names(tuple(a for letter, a in options if letter == "p" and a is not None), note)


def _compgen(words: tuple[Word, ...], note: Noter) -> Change:
    options, _, certain = _options(words, "oAGWFCXPS")
    if not certain or any(letter in "CFW" for letter, _ in options):
        note("shell.callback", "")
        return ANYTHING
    return NOTHING


def _complete(words: tuple[Word, ...], note: Noter) -> Change:
    note("shell.callback", "")
    return NOTHING


def _enable(words: tuple[Word, ...], note: Noter) -> Change:
    if not words or (len(words) == 1 and words[0].value in ("-p", "-a", "-s", "-pa", "-ps")):
        return NOTHING
    note("shell.loads_builtin", "")
    return ANYTHING


def _hash(words: tuple[Word, ...], note: Noter) -> Change:
    options, _, certain = _options(words, "p")
    if not certain or any(letter == "p" for letter, _ in options):
        note("shell.hash", "")
    return NOTHING


def _bind(words: tuple[Word, ...], note: Noter) -> Change:
    note("shell.bind", "")
    return NOTHING


def _history(words: tuple[Word, ...], note: Noter) -> Change:
    if len(words) > 1 or not all(word.values and all(map(_NUMBER.match, word.values)) for word in words):
        note("shell.history", "")
    return NOTHING


def _fc(words: tuple[Word, ...], note: Noter) -> Change:
    note("shell.history", "")
    return ANYTHING


def _exec(words: tuple[Word, ...], note: Noter) -> Change:
    note("shell.exec", "")
    return NOTHING


_HARMLESS_SHOPT = frozenset(
    ("nullglob", "failglob", "dotglob", "nocaseglob", "globstar", "nocasematch", "inherit_errexit", "checkwinsize")
)
_HARMLESS_SET = frozenset("abefhmtuvxBCET")
_HARMLESS_SET_NAMES = frozenset(
    """allexport braceexpand errexit errtrace functrace hashall monitor noclobber noglob notify nounset onecmd pipefail
    verbose xtrace""".split()  # noqa: SIM905  one name a line would hide them
)


def _shopt(words: tuple[Word, ...], note: Noter) -> Change:
    sets = False
    for word in words:
        value = word.value
        if value is None:
            note("shell.option", "an option that is not literal")
            return ANYTHING
        if value.startswith("-"):
            sets = sets or "s" in value or "u" in value
        elif sets and value not in _HARMLESS_SHOPT:
            note("shell.option", value)
            return ANYTHING
    return NOTHING


def _set(words: tuple[Word, ...], note: Noter) -> Change:
    index = 0
    while index < len(words):
        value = words[index].value
        if value is None:
            if not words[index].prefix or words[index].prefix.startswith(("-", "+")):
                note("shell.option", "an option that is not literal")
                return ANYTHING
            return NOTHING
        if value in ("--", "-") or not value.startswith(("-", "+")):
            return NOTHING
        letters = value[1:]
        index += 1
        if letters.endswith("o"):
            letters = letters[:-1]
            if index < len(words):
                name = words[index].value
                if name not in _HARMLESS_SET_NAMES:
                    note("shell.option", name or "an option that is not literal")
                    return ANYTHING
                index += 1
        if not set(letters) <= _HARMLESS_SET or (value[0] == "+" and "B" in letters):
            note("shell.option", value)
            return ANYTHING
    return NOTHING


def _test(words: tuple[Word, ...], note: Noter) -> Change:
    operands = [word for word in words if word.value != "]"]
    for index, word in enumerate(operands):
        following = operands[index + 1] if index + 1 < len(operands) else None
        if word.value is None and (WordFlag.SPLITS in word.flags or not word.prefix):
            if len(operands) > 1 and WordFlag.SPLITS in word.flags:
                note("shell.test_variable", "an unquoted word can become `-v`")
                return NOTHING
            continue
        if word.value == "-v" and following is not None:
            value = following.value
            if value is None or not _NAME.match(value):
                note("shell.test_variable", value or "a name that is not literal")
                return NOTHING
    return NOTHING


def _moves(words: tuple[Word, ...], note: Noter) -> Change:
    return Change(moves=True, names=frozenset(("PWD", "OLDPWD", "DIRSTACK")))


HANDLERS: dict[str, Handler] = {
    ".": _source,
    "[": _test,
    "alias": _alias,
    "bind": _bind,
    "cd": _moves,
    "compgen": _compgen,
    "complete": _complete,
    "compopt": _complete,
    "declare": _declare,
    "enable": _enable,
    "eval": _eval,
    "exec": _exec,
    "export": _export,
    "fc": _fc,
    "getopts": _getopts,
    "hash": _hash,
    "history": _history,
    "let": _let,
    "local": _local,
    "mapfile": _mapfile,
    "popd": _moves,
    "printf": _printf,
    "pushd": _moves,
    "read": _read,
    "readarray": _mapfile,
    "readonly": _readonly,
    "set": _set,
    "shopt": _shopt,
    "source": _source,
    "test": _test,
    "trap": _trap,
    "typeset": _declare,
    "unset": _unset,
    "wait": _wait,
}

_CONDITION_NUMERIC = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))
_COUNTED = frozenset(("!", "EUID", "UID", "PPID"))  # bash lets nobody assign to the last three
_NUMBER = re.compile(r"[+-]?[0-9]+\Z")


def condition(words: tuple[Word, ...], note: Noter) -> Change:
    """`[[ … ]]`: what its operators evaluate."""
    for index, word in enumerate(words):
        value = word.value
        if value == "-v" and index + 1 < len(words):
            name = words[index + 1].value
            if name is None or not _NAME.match(name):
                note("shell.test_variable", name or "a name that is not literal")
                return _ALL_NAMES
        elif value in _CONDITION_NUMERIC and 0 < index < len(words) - 1:
            for operand in (words[index - 1], words[index + 1]):
                if not operand.values or not all(map(_NUMBER.match, operand.values)):
                    if _counts(operand):
                        continue
                    note("shell.test_arithmetic", operand.value or "an operand that is not literal")
                    return _ALL_NAMES
    return Change(frozenset(("BASH_REMATCH",)))


def _counts(word: Word) -> bool:
    """Whether the word is `$#`, `$?` or a length: a number whatever happened before."""
    return len(word.parts) == 1 and (word.parts[0].counts or (word.parts[0].text in _COUNTED and not word.parts[0].op))


def command_name(words: tuple[Word, ...]) -> int:
    """The index of the name behind `command` and `builtin`, which look through to builtins; -1 when it is not certain."""
    index = 0
    while index < len(words) and words[index].value in ("command", "builtin"):
        wrapper = words[index].value
        index += 1
        while index < len(words):
            value = words[index].value
            if value is None:
                return -1
            if value == "--":
                index += 1
                break
            if wrapper != "command" or not value.startswith("-") or value == "-":
                break
            if set(value[1:]) & set("vV"):
                return len(words)  # only says what the name would be
            index += 1
    return index
