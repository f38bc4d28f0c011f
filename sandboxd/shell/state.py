# SPDX-License-Identifier: GPL-3.0-or-later
"""What is certain at one point of a script: values of variables, the directory, the directory stack.

A State never changes; each method gives a new one. Everything that is not certain is absent. Several paths through the
script are joined to what holds on all of them (a set of values, a set of directories).
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

from sandboxd.model.shell import Part, PartKind, Word, WordFlag
from sandboxd.paths import normalize
from sandboxd.shell.cuts import CUTS, cut

MAX_VALUES = 16
MAX_CWDS = 4
MAX_TRACKED = 64
_MAX_VALUE_LENGTH = 4_096

Values = tuple[str, ...]
Cwds = tuple[str, ...]

# Characters that survive an unquoted expansion as one unchanged word, with the default IFS.
_UNSPLIT = re.compile(r"[A-Za-z0-9_./:@%+,=^-]+\Z")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})\Z")
_NAMES = re.compile(r"(?<![0-9A-Za-z_#@])[A-Za-z_][A-Za-z0-9_]*")
# Variables that bash itself sets, refuses to change or gives a meaning: never followed.
_SPECIAL = frozenset(
    """COLUMNS COMP_CWORD COMP_KEY COMP_LINE COMP_POINT COMP_TYPE COMP_WORDBREAKS COMP_WORDS COPROC DIRSTACK EPOCHREALTIME
    EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD HOME HOSTNAME HOSTTYPE LINENO LINES MACHTYPE MAPFILE OLDPWD OPTARG OPTIND
    OSTYPE PIPESTATUS POSIXLY_CORRECT PPID PWD RANDOM READLINE_LINE REPLY SECONDS SHELLOPTS SHLVL SRANDOM UID _""".split()  # noqa: SIM905  one name a line would hide them
)


# A change of these makes `cd` lead elsewhere.
_PLACES = frozenset(("HOME", "CDPATH"))


def trackable(name: str) -> bool:
    return name not in _SPECIAL and not name.startswith("BASH")


class State:
    """`cwds` None = unknown. `stack` is the directory stack below the current one, None = unknown."""

    __slots__ = ("cwds", "fixed", "lost", "splits", "stack", "variables")

    def __init__(
        self,
        variables: dict[str, Values],
        cwds: Cwds | None,
        stack: tuple[Cwds, ...] | None = (),
        fixed: frozenset[str] = frozenset(),
        splits: bool = True,
        lost: bool = False,
    ) -> None:
        self.variables = variables
        self.cwds = cwds
        self.stack = stack
        self.fixed = fixed  # names that are not followed any more: readonly, with attributes, a function's
        self.splits = splits  # IFS has its default value
        self.lost = lost  # text that was not read may run at any time: nothing is followed any more

    def _with(
        self,
        variables: dict[str, Values] | None = None,
        fixed: frozenset[str] | None = None,
        splits: bool | None = None,
    ) -> State:
        return State(
            self.variables if variables is None else variables,
            self.cwds,
            self.stack,
            self.fixed if fixed is None else fixed,
            self.splits if splits is None else splits,
            self.lost,
        )

    def assign(self, name: str, values: Values) -> State:
        if name == "IFS":
            return self._with(splits=False)
        if name in _PLACES:
            return self._with(fixed=self.fixed | {name})
        if (
            self.lost
            or not values
            or name in self.fixed
            or not trackable(name)
            or len(values) > MAX_VALUES
            or (len(self.variables) >= MAX_TRACKED and name not in self.variables)
            or max(map(len, values)) > _MAX_VALUE_LENGTH
        ):
            return self.forget((name,))
        variables = dict(self.variables)
        variables[name] = values
        return self._with(variables)

    def forget(self, names: tuple[str, ...] | frozenset[str]) -> State:
        if "HOME" in names or "CDPATH" in names:
            return self._with(fixed=self.fixed | _PLACES).forget(frozenset(names) - _PLACES)
        splits = self.splits and "IFS" not in names
        if splits == self.splits and not any(name in self.variables for name in names):
            return self
        return self._with({k: v for k, v in self.variables.items() if k not in names}, splits=splits)

    def pin(self, names: frozenset[str]) -> State:
        """Follow these names never again."""
        return self.forget(names)._with(fixed=self.fixed | names)

    def forget_all(self) -> State:
        """An expansion may have changed any variable."""
        return self._with({}) if self.variables else self

    def lose(self) -> State:
        """Text that was not read ran, or may run later: nothing is certain from here on."""
        return State({}, None, None, self.fixed, False, True)

    def at(self, cwds: Cwds | None, stack: tuple[Cwds, ...] | None) -> State:
        if self.lost or (cwds is not None and len(cwds) > MAX_CWDS):
            cwds = None
        return State(self.variables, cwds, stack, self.fixed, self.splits, self.lost)

    # --- words ---------------------------------------------------------------------------------------------------

    def resolve(self, word: Word) -> Word:
        """The word with what is certain put in. A word that thereby becomes literal has no flags left."""
        variables = self.variables
        flags = word.flags
        if not variables or not (WordFlag.VARIABLE in flags or WordFlag.ARITHMETIC in flags):
            return word
        if WordFlag.BRACE in flags:
            return word  # its pieces are what is written, not what it becomes
        if WordFlag.EVALUATES in flags and self._only_numbers(word):
            flags = flags - {WordFlag.EVALUATES}
        splitting = WordFlag.SPLITS in flags
        parts: list[Part] = []
        choices: list[Values] = []
        changed = flags is not word.flags
        for part in word.parts:
            if part.kind is PartKind.VARIABLE:
                values = self._values(part, splitting)
                if values is not None:
                    changed = True
                    choices.append(values)
                    parts.append(Part(PartKind.LITERAL, values[0], True) if len(values) == 1 else part)
                    continue
                if part.operand and part.op[-1] in "-=+":
                    changed = True
                    part = replace(part, operand=tuple([self._operand(piece) for piece in part.operand]))
            elif part.kind is PartKind.LITERAL:
                choices.append((part.text,))
                parts.append(part)
                continue
            choices.append(())
            parts.append(part)
        if not changed:
            return word
        count = 1
        for values in choices:
            count *= len(values)
        if count == 1:
            return Word(word.span, tuple(parts), ("".join([values[0] for values in choices]),))
        if 1 < count <= MAX_VALUES:
            seen = tuple(dict.fromkeys(["".join(choice) for choice in product(*choices)]))
            return Word(word.span, tuple(parts), seen, flags - {WordFlag.SPLITS})
        return Word(word.span, tuple(parts), (), flags)

    def _operand(self, piece: Part) -> Part:
        """A piece of an operand with the one value put in that its variable certainly has."""
        values = self._values(piece, False) if piece.kind is PartKind.VARIABLE else None
        return piece if values is None or len(values) != 1 else Part(PartKind.LITERAL, values[0], True)

    def _values(self, part: Part, splitting: bool) -> Values | None:
        values = self.variables.get(part.text)
        if values is None:
            return None
        if part.op in CUTS:
            shorter = [cut(value, part.op, part.operand) for value in values]
            values = tuple([value for value in shorter if value is not None])
            if len(values) < len(shorter):
                return None
        elif part.op not in ("", ":-", "-"):
            return None
        if part.op == ":-" and "" in values:
            return None
        if splitting and not part.quoted and not (self.splits and all(map(_UNSPLIT.match, values))):
            return None
        return values

    def _only_numbers(self, word: Word) -> bool:
        """Whether every name that the word evaluates is a variable known to hold integers."""
        if word.parts[0].text.startswith("["):
            return False  # an element's subscript
        for part in word.parts:
            if part.kind is PartKind.ARITHMETIC:
                if "[" in part.text or "$" in part.text or "`" in part.text or "=" in part.text.replace("==", ""):
                    return False
                if "++" in part.text or "--" in part.text:
                    return False
                for name in _NAMES.findall(part.text):
                    if not all(map(_INTEGER.match, self.variables.get(name, ("",)))):
                        return False
            elif part.kind is PartKind.VARIABLE and part.op:
                return False
        return True

    # --- directories ---------------------------------------------------------------------------------------------

    def moved(self, targets: Values) -> Cwds | None:
        """The directories after `cd` to each of `targets`."""
        if "CDPATH" in self.fixed or ("HOME" in self.fixed and any(target.startswith("~") for target in targets)):
            return None
        if self.cwds is None and not all(t.startswith(("/", "~")) for t in targets):
            return None
        out: list[str] = []
        for target in targets:
            if not target or target == "-" or (target.startswith("~") and target[1:2] not in ("", "/")):
                return None
            for cwd in self.cwds or ("",):
                path = _under(cwd, target)
                if path is None:
                    return None
                out.append(path)
        unique = tuple(dict.fromkeys(out))
        return unique if len(unique) <= MAX_CWDS else None


def _under(cwd: str, target: str) -> str | None:
    """`cd` keeps its own notion of the path: `..` takes off the last name, whatever it links to. None above the home."""
    if target.startswith("/"):
        return normalize(target)
    if target.startswith("~"):
        cwd, target = "~", target[2:] if target.startswith("~/") else "."
    if cwd == "~" or cwd.startswith("~/"):
        rest = normalize(f"{cwd[2:]}/{target}".lstrip("/"))
        return None if rest.startswith("..") else "~" if rest == "." else f"~/{rest}"
    joined = normalize(f"{cwd}/{target}" if cwd else target)
    return "" if joined == "." else joined


def join(a: State | None, b: State | None) -> State | None:
    """What holds whichever of two paths was taken; None is a path that never arrives."""
    if a is None or a is b:
        return b
    if b is None:
        return a
    variables: dict[str, Values] = {}
    for name, values in a.variables.items():
        others = b.variables.get(name)
        if others is None:
            continue
        both = values if values == others else tuple(dict.fromkeys(values + others))
        if len(both) <= MAX_VALUES:
            variables[name] = both
    cwds: Cwds | None = None
    if a.cwds is not None and b.cwds is not None:
        cwds = a.cwds if a.cwds == b.cwds else tuple(dict.fromkeys(a.cwds + b.cwds))
        if len(cwds) > MAX_CWDS:
            cwds = None
    stack = a.stack if a.stack == b.stack else None
    return State(variables, cwds, stack, a.fixed | b.fixed, a.splits and b.splits, a.lost or b.lost)
